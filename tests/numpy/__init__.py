"""Tests of ``mx.np``."""
