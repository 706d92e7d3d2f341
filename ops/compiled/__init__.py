"""Operators that the graph compiler alone makes: users never call them."""
