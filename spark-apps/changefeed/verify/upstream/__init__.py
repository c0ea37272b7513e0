"""What the upstream says the sink should contain, derived independently: DDLs, tables' lives, changes and rows."""
