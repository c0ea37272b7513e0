"""Tables of Apache Iceberg, row by row against the upstream's."""
