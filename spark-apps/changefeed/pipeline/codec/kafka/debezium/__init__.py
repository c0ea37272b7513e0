"""Debezium's JSON."""
