"""What has been decided, for ever: the records of the transaction log and what they say."""
