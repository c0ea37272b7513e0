"""Compares tables of Delta Lake with the upstream, row by row."""
