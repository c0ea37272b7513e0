"""A changefeed's sink, as its driver has it: opened, checked, taken over, and described to the tasks."""
