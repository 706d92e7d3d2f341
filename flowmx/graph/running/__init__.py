"""Compiled plans at work: their steps with arrays, memory for their values, and where their results go."""
