"""Tests of the wire, nodes and launching."""
