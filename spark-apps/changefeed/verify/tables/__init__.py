"""Compares tables of rows with the upstream's, key by key: those of MySQL, Iceberg and topics of avro."""
