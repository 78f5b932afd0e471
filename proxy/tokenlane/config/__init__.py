"""Settings: their table, how they are read, flags, differences on reload, keys and TLS files."""
