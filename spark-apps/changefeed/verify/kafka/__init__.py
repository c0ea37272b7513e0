"""Reads topics of a Kafka cluster the way their consumers do."""
