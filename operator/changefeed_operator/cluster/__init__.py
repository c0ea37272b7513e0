"""The API server: its client, the credentials, the Lease."""
