"""What tables of Iceberg and of Delta Lake have in common."""
