"""Which transactions may run concurrently, and which worker writes which next. Pure."""
