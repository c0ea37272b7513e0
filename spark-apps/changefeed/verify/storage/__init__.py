"""Verifies files in an object store."""
