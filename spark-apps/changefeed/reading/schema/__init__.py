"""What schema files and the statements in them say of tables and columns."""
