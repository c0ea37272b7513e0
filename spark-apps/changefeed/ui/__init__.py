"""The page that people look at: what is known of changefeeds, as HTML. Read-only; nothing is decided from it."""
