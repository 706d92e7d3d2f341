"""Weights of a generator from a KVStore: a trainer in another process updates them while texts are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from flowmx import ndarray as nd
from flowmx.errors import ParameterError
from flowmx.generation.generator import Generator
from flowmx.gluon.parameter import Parameter

__all__ = ["WeightPuller", "WeightStore"]


class WeightStore(Protocol):
    """The part of a KVStore that this module uses."""

    def pull(self, key: Any, out: Any = None, priority: int = 0) -> None:
        """Push the reading of values into arrays."""


class WeightPuller:
    """A connection of a generator to a KVStore, from which it gets its weights.

    The values are pulled into other arrays while the generator continues, and replace the weights between two steps. So
    a step reads all weights of one pull, and no step waits for the network.

    Args:
        generator: the generator.
        store: the store, such as ``mx.kv.create("dist_async")``.
        parameters: the parameters of the generator's network by key. The keys of a ``Trainer`` are the indices of its
            parameters.

    Raises:
        ValueError: there are no parameters, or one is not initialized.

    Example:
        >>> puller = WeightPuller(generator, kv, dict(enumerate(net.collect_params().values())))
        >>> version = await puller.pull()
    """

    def __init__(self, generator: Generator, store: WeightStore, parameters: Mapping[Any, Parameter]) -> None:
        if not parameters:
            raise ParameterError("WeightPuller: parameters is empty, expected the network's parameters by key")
        self._generator, self._store = generator, store
        self._keys = list(parameters)
        self._values = {each.name: nd.zeros_like(each.data()) for each in parameters.values()}

    async def pull(self, policy: str = "step") -> int:
        """Pull all weights, and replace those of the generator; return their version.

        Args:
            policy: when they take effect; see :meth:`Generator.swap`.

        Raises:
            ValueError: the policy is unknown.
            KVStoreError: the store cannot be read; then the weights stay as they are.
            EngineError: the generator is closed.
        """
        arrays = list(self._values.values())
        self._store.pull(self._keys, out=arrays)
        for array in arrays:
            await array
        return await self._generator.swap(self._values, policy)
