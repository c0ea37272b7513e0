"""The API server: its client, and how it is reached; the operator, a driver and the command line share them."""
