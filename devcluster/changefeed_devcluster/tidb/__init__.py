"""A TiDB server, as far as it writes: schemas, rows, transactions."""
