"""The web page: renders what is known about changefeeds as HTML. Read-only; nothing else depends on it."""
