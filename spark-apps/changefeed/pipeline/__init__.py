"""The pipeline turns raw rows into those that a sink takes: read, sort, filter, mount; columnar throughout."""
