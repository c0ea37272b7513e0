"""Tables of Delta Lake. Tasks write Parquet files; the driver commits them by delta-rs."""
