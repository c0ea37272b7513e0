"""Which transactions may run side by side, and who writes which next. Pure."""
