"""Checks a sink against its promises and against the upstream (CORRECTNESS.md, Promises; facts, oracles 6.3).

It has its own code for reading: it shares nothing with the puller, the sorter or the encoders, whose bugs it is there
to find.
"""
