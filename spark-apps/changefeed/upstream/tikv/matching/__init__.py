"""Turns the bytes of a stream into committed rows: decodes, matches, spills what does not fit in memory."""
