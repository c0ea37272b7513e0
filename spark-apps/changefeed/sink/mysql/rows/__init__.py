"""Row changes for a MySQL server: their keys, their values as SQL, and the statements of a transaction. Pure."""
