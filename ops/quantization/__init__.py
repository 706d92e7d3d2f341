"""Operators on int8 and uint8 that stand for real numbers in a range, as MXNet's quantization makes them."""
