"""What stands in a data file: rows, by protocol and compression."""
