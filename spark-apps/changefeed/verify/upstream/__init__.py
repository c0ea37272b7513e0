"""What the upstream says should stand there, found anew: DDLs, the lives of tables, changes and rows."""
