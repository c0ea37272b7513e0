"""From the bytes of a replication connection to rows (PostgreSQL, Logical Replication Message Formats)."""
