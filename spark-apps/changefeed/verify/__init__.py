"""Checks a sink against its promises and against the upstream (CORRECTNESS.md, Promises; facts, oracles 6.3).

It reads with code of its own: nothing of the puller, the sorter or the encoders whose faults it is there to find.
"""
