"""What TiCDC's Kafka protocols make of records and of what else a topic is told: pure functions to keys and values."""
