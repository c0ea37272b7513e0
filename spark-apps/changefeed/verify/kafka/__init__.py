"""Topics of a Kafka cluster, as their consumers read them."""
