"""Exactly TiCDC's layout on an object store (docs/sink-files.md)."""
