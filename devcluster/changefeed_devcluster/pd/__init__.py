"""A placement driver: timestamps, regions, safepoints."""
