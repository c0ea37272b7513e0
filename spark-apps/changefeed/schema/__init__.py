"""TiDB's codecs and schema history: keys, rows, TableInfo, DDL jobs. No I/O of its own."""
