"""Operators that run what the user wrote: loops and branches over graphs, and operators in Python."""
