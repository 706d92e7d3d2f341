"""Benchmarks of flowmx, each beside the system it is measured against (``python -m benchmarks``)."""
