"""What has been decided for good: the transaction log's records and what they mean."""
