"""Operators on int8 and uint8 numbers that represent a floating-point range, as in MXNet's quantization."""
