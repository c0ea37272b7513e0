"""The Kubernetes client and its connection, shared by the operator, the driver and the command line."""
