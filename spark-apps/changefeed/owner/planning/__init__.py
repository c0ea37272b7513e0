"""Decides what may be written and how it is cut into files: barrier, DDL span, planner, checkpoint."""
