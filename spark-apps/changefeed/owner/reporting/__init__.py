"""What a run says of itself: counters, the live view's numbers, the resource's status."""
