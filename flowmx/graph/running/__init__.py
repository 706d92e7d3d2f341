"""Execution of compiled plans: steps bound to arrays, memory for values, and arrays for results."""
