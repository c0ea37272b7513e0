"""The initial copy of a database's tables."""
