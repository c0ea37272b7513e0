"""Row changes as a MySQL is told them: their keys, their values as SQL, and the statements of a transaction. Pure."""
