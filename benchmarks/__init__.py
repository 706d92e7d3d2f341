"""Benchmarks of flowmx, each with the system that it is compared with (``python -m benchmarks``)."""
