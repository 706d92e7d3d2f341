"""Passes over the graph of a symbol."""
