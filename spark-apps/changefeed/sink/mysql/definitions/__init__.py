"""Holds the downstream's tables against the upstream's definitions."""
