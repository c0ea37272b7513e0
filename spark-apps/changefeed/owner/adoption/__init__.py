"""`changefeed adopt`: takes over a sink that something else wrote (CORRECTNESS.md, rule 7)."""
