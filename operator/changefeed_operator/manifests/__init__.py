"""The objects written to the cluster, as plain data. Pure."""
