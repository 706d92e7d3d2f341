"""Tests of arrays and autograd."""
