"""The objects that a changefeed needs all its life: what of them is not as it should be, and what is done about it."""
