"""Rows as transactions of a MySQL-compatible server."""
