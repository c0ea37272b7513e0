"""Which changes of the selected tables, and which of their columns, reach the sink."""
