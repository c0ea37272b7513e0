"""The kinds of sink, a folder for each, and beside them what several share. Rows come as `records.Records`."""
