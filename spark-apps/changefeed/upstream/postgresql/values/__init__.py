"""What the texts of PostgreSQL's types are in SQL types and Arrow arrays."""
