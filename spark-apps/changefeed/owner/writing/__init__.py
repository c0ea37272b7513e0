"""Which pipeline task writes which of the planned files."""
