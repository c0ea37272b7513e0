"""Checks a sink against its promises and against the upstream (docs/guarantees.md, How it is proved).

It has its own code for reading: it shares nothing with the puller, the sorter or the encoders, whose bugs it is there
to find.
"""
