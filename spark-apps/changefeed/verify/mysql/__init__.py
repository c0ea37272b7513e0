"""Compares a MySQL-compatible database with the upstream's tables, row by row."""
