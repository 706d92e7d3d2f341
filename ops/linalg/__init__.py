"""Matrix products, and MXNet's batched linear algebra."""
