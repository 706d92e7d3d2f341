"""Operators that run user code: loops and branches, whose bodies are graphs, and custom operators in Python."""
