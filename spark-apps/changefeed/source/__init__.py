"""A table's row changes as rows of somebody else's Spark job: `format("changefeed")` (docs/spark-source.md).

The core (options, offset, admission, read_schema, schema_changes, change_rows) is pure. Shells around it: `stream` for
the driver's side of a streaming query, `bounded` for a batch, `reading` for tasks. Pullers, event store, sorter and
mounter are the product's own; nothing here imports PySpark, which `pyspark_changefeed` does.
"""
