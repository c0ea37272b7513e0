"""Compares files with a snapshot of their upstream: of one that keeps no history, as PostgreSQL."""
