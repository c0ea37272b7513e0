"""What attempts there were, the life of the one there is, and when there is another."""
