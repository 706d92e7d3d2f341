"""What ``python -m flowmx train`` does: data and models by name, the loop, and what stands around either."""
