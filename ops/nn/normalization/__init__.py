"""Normalizations: over the batch, within each example, by a norm, and over neighboring channels."""
