"""What pods, Jobs and Spark say of their troubles."""
