"""DDL statements that are written from definitions, never from what somebody typed. Pure."""
