"""The resource's filters: table rules, columns, event types, and Go's regular expressions."""
