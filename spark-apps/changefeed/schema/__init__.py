"""TiDB's codecs and its schema through time: keys, rows, TableInfo, DDL jobs, schema storage. No I/O of its own."""
