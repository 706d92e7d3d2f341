"""Mutation testing: random small faults in the source must be found by the closest tests."""
