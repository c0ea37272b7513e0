"""DDL jobs as TiDB writes them, and what each class of them does to the tables."""
