"""What stands in a sink: files by directory, and versions in the order in which a consumer reads them."""
