"""Quantization of graphs: node selection, calibrated ranges, and fusion of layers."""
