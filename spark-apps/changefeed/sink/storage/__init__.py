"""Exactly TiCDC's layout on an object store (facts, ticdc-compatibility 2)."""
