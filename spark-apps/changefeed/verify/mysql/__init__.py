"""A MySQL-compatible database, row by row against the upstream's tables."""
