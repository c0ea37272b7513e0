"""What the schema files of a sink tell of its tables, without a row. Pure."""
