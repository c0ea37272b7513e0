"""What is written into the cluster, as plain objects: pure."""
