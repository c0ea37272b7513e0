"""DDL jobs as TiDB writes them, and what each kind does to tables."""
