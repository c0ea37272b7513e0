"""TiDB's codecs and schema history: keys, rows, TableInfo, DDL jobs, schema storage. No I/O of its own."""
