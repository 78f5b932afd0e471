"""The control plane: probes, the fleet's state, the admin port. Never on the data path."""
