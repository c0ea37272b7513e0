"""A changefeed's sink on the driver side: opened, checked, claimed, and described to the tasks."""
