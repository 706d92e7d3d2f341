"""Tests of operators and their kernels."""
