"""Tables of Apache Iceberg: tasks put Parquet files, the driver makes snapshots of them."""
