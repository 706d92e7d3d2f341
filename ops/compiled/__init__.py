"""Operators that only the graph compiler creates; users never call them."""
