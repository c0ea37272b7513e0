"""Reads the rows that stand in tables."""
