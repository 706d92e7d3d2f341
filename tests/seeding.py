"""Seed all random number generators that a program uses."""

import random

import numpy as np

import flowmx as mx


def seed_all(seed: int) -> None:
    """Seed Python's generator, NumPy's, and flowmx's."""
    random.seed(seed)
    np.random.seed(seed)
    mx.random.seed(seed)
