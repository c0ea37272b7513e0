"""What a sink's schema files say about its tables, without any rows. Pure."""
