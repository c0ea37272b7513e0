"""TiCDC's layout on an object store, to the letter (facts, ticdc-compatibility 2)."""
