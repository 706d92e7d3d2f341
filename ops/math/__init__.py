"""Mathematics: elementwise functions, two operands, reductions, casts."""
