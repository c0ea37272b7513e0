"""A storage sink's tables as they were at an earlier ts, made of its files alone: `changefeed restore` and `flashback`.

Nothing is asked of an upstream. What no file says makes a gap, and a table with a gap that matters is named, never
guessed.
"""
