"""Where replicas are found besides the settings: a file, DNS, the Kubernetes API.

A source reports the replicas it sees; `control.roster` decides who belongs to the fleet.
"""
