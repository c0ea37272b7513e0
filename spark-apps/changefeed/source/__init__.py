"""The Spark data source `format("changefeed")`: a table's row changes in a user's own job (docs/spark-source.md).

The core (options, offset, admission, read_schema, schema_changes, change_rows) is pure. The shells around it: `stream`
is the driver side of a streaming query, `bounded` is a batch query, `reading` runs in tasks. Pullers, event store,
sorter and mounter are shared with `changefeed run`. Only `pyspark_changefeed` imports PySpark.
"""
