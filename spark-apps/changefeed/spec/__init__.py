"""The Changefeed resource: parse, validate, defaults; shared with the operator. No I/O."""
