"""The one held against the other, a life of a table at a time, in DuckDB."""
