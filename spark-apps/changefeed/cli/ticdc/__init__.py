"""TiCDC's configuration, turned into a Changefeed."""
