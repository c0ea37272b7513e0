"""`changefeed adopt`: takes over a sink that something else wrote (docs/design/rules.md, Rule 7)."""
