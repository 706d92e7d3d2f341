"""Graphs: nodes, inference, differentiation, passes, and plans."""
