"""Apache Iceberg tables: tasks write Parquet files, the driver commits them in snapshots."""
