"""Where output ends up: names, schema files, and writes that happen once. Knows nothing about rows."""
