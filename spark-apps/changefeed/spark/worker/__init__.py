"""Python workers of the executors: forked from one that has everything loaded."""
