"""Rebuilds a storage sink's tables as of an earlier ts, from its files alone: `changefeed restore` and `flashback`.

No upstream is involved. What no file says leaves a gap, and a table with a gap that matters is reported, never guessed.
"""
