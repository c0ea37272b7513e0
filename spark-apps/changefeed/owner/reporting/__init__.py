"""What a run reports about itself: counters, the live view's numbers, the resource's status."""
