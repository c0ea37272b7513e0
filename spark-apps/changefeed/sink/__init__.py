"""Where files end: names, schema files, and writes that happen once. Knows nothing of rows."""
