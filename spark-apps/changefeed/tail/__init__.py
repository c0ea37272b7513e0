"""What a storage sink's files say, as it comes: `changefeed tail`.

For people who look. It reads what any reader of the files reads, and never writes.
"""
