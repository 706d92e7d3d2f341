"""Checks of plans: random legal orders, and free memory overwritten."""
