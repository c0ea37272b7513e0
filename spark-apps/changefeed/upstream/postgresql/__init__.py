"""PostgreSQL: changes of tables out of one logical replication slot."""
