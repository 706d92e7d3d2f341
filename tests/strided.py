"""Handles on parts of arrays that do not lie together, as operators meet them inside graphs; indexing copies these."""

from flowmx.ndarray import indexing
from flowmx.ndarray.views import make_view


def strided(array, *key):
    """A handle on what a basic key selects, in the array's own memory."""
    return make_view(array, *indexing._view(array, indexing._expand(array, key)))
