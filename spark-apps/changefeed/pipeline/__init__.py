"""From raw rows to the bytes of files: sort, mount, encode, spool; columnar throughout. Knows no store and no Spark."""
