"""A TiKV store: MVCC records, transactions and their rules, over gRPC."""
