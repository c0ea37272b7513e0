"""The objects that a changefeed needs for its whole life: how they drifted, and how they are repaired."""
