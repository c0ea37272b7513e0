"""Where the changes go: the kinds of sink, of which a changefeed has one (docs/reference/configuration.md)."""
