"""How far a range of keys is settled, and who is asked for it: source design 2, pure but for the store that is read."""
