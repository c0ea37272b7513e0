"""Attempts: what is remembered of them, the lifecycle of the current one, and when the next one starts."""
