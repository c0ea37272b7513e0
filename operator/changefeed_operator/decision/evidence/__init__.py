"""What pods, Jobs and Spark reveal about what went wrong."""
