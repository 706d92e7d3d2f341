"""Matrix products, and MXNet's linalg in batches."""
