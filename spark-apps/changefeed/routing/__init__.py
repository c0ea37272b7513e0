"""Under which names tables are written (`spec.routes`): from the upstream's to the sink's. Pure."""
