"""A release of one commit, made reproducibly: `make release VERSION=1.2.3` (docs/releasing.md)."""
