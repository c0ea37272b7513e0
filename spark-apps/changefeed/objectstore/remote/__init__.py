"""Buckets as object stores, through obstore: `store` and `failures` are shared, the rest is specific to a cloud."""
