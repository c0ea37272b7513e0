"""The slot: what is read of it, in which order, and how far its history is held."""
