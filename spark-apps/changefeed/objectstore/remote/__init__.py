"""Buckets as object stores, by obstore: `store` and `failures` are common, the rest is a cloud's own."""
