"""What a run reports about itself: counters, and one snapshot for the terminal, `/status` and the resource."""
