"""Tests of graphs: passes, plans, executors."""
