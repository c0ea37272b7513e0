"""Converts TiCDC configurations to Changefeeds."""
