"""Checks of plans: random valid orders, and overwritten free memory."""
