"""Sessions: models with a state for each client, whose calls run in order and share batches with those of others."""
