"""A store's change data service: subscriptions, streams, and what goes wrong in delivery."""
