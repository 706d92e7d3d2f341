"""Updates of weights, each one pass over memory."""
