"""The contents of a sink as its readers find them: files by directory, and their rows."""
