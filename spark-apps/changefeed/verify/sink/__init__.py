"""What stands in a sink, as its readers find it: files by directory, and the rows in them."""
