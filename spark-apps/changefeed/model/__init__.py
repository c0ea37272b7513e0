"""Shapes that several stages agree on: ts, positions, raw batches, log records. No I/O, no decisions."""
