"""Values, rows and types as TiCDC writes them in text, a column at a time; what several sinks share."""
