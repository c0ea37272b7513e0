"""Spark's part: one job, some of whose tasks pull while the others write files.

The driver's owner decides everything; this folder only carries out. Nothing here may put the owner's token into Spark's
conf, the environment or a log: it travels in pickled closures.
"""
