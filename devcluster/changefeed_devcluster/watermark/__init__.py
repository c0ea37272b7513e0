"""How far a range of keys is settled, and who is asked for it: pure but for the store that is read."""
