"""Kafka: messages by topic and partition, at least once or exactly once."""
