"""A random partitioner: each operator is in a region or not."""

import numpy as np

import flowmx as mx
from flowmx.ops.registry.operators import lookup

BACKEND = "by lot"
FLOWS = ("_foreach", "_while_loop", "_cond", "_CachedOp")


@mx.sym.register_partitioner(BACKEND)
class ByLot(mx.sym.Partitioner):
    """Select operators at random.

    Its options are those of :func:`options`.
    """

    def __init__(self, args, aux, options):
        super().__init__(args, aux, options)
        self._random = np.random.default_rng(options["seed"])
        self._share = self._random.choice([0.3, 0.6, 0.9, 1])

    def select(self, node):
        # A region draws different random numbers than its operators alone.
        draws = lookup(node.op).traits.uses_random or (node.op in FLOWS and self.options["draws"])
        return self._random.random() < self._share and not draws


def options(network):
    """Return the options of the partitioner for a network."""
    return {"backend": BACKEND, "seed": network.seed, "draws": network.draws}
