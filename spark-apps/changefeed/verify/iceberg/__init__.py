"""Compares Apache Iceberg tables with the upstream, row by row."""
