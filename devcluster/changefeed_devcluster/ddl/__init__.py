"""DDLs as TiDB runs them: a job in `mysql.tidb_ddl_job`, definitions in meta keys, rows that are rewritten."""
