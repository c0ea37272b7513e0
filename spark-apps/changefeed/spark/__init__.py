"""Spark's part: the puller job, and a Python data source and sink whose tasks execute plans.

The driver's owner decides everything; this folder only carries out. Nothing here may put the owner's token into Spark's
conf, the environment or a log: it travels in pickled closures.
"""
