"""`changefeed adopt`: a sink that somebody else wrote becomes a changefeed's (CORRECTNESS.md, rule 7)."""
