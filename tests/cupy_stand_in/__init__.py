"""A stand-in for CuPy on NumPy, for machines without a GPU: see arrays.py for the arrays and their functions."""
