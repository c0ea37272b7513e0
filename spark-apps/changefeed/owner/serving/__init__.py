"""The owner's gRPC service, which its own tasks connect to."""
