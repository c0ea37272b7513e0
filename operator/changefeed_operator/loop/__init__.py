"""What drives passes: watches, the queue, the reconciler, leader election, the process."""
