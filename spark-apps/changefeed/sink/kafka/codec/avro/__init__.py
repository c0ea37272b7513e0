"""Avro in Confluent's wire format."""
