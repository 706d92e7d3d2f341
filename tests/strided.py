"""Non-contiguous views of arrays, as operators get them inside graphs; indexing would copy them."""

from flowmx.ndarray import indexing
from flowmx.ndarray.views import make_view


def strided(array, *key):
    """Return a view of the part that a basic key selects, in the array's own memory."""
    return make_view(array, *indexing._view(array, indexing._expand(array, key)))
