"""Tests of compatibility with MXNet and other packages."""
