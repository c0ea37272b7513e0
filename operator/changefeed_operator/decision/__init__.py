"""Decides what to do from what was observed: pure, total, without a clock of its own."""
