"""What makes passes happen: watches, the queue, the reconciler, the life of the process."""
