"""Compares sink and upstream in DuckDB, one life of a table at a time."""
