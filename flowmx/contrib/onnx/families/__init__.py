"""Converters, a family of operators a file: what is written as ONNX, and beside it what is read."""
