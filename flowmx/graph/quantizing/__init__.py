"""Quantized forms of graphs: which nodes become quantized, with what ranges, and what goes together."""
