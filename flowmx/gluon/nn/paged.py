"""The paged cache of a decode step, as the attention of each layer sees it."""

from __future__ import annotations

from typing import Any, NamedTuple

from flowmx.gluon.nn.positions import RotaryPositions
from flowmx.ops.registry.tensors import Functions

__all__ = ["PagedCache"]


class PagedCache(NamedTuple):
    """The cache and the tokens of a step; see ``flowmx.generation.StepBatch``.

    Attributes:
        F: the functions of arrays or of symbols.
        array: the keys and values of all layers.
        page_size: the number of positions of a page.
        positions: the place of each token in its sequence.
        slots: where the key and the value of each token are written.
        sequences: the row of ``tables`` of each token's sequence.
        tables: the pages of each sequence.
        waves: the cosines and sines of rotary positions, by :attr:`RotaryPositions.key`; empty at first.
    """

    F: Functions
    array: Any
    page_size: int
    positions: Any
    slots: Any
    sequences: Any
    tables: Any
    waves: dict[Any, list[Any]]

    def attend(
        self, queries: Any, keys: Any, values: Any, layer: int, rotary: RotaryPositions | None, **options: Any
    ) -> Any:
        """Write the keys and values of a layer to the cache, and return the attention of its queries.

        Args:
            queries: (tokens, heads · size).
            keys: (tokens, key heads · size).
            values: the shape of the keys.
            layer: the index of the layer in the cache.
            rotary: rotates queries and keys, or None.
            **options: parameters of the operator ``_contrib_paged_attention``.
        """
        waves = [] if rotary is None else self._waves(rotary, queries)
        return self.F.contrib.paged_attention(
            queries, keys, values, self.positions, self.slots, self.sequences, self.tables, self.array, *waves,
            layer=layer, page_size=self.page_size, rotary=rotary is not None, **options,
        )  # fmt: skip

    def _waves(self, rotary: RotaryPositions, queries: Any) -> list[Any]:
        """Return cosines and sines, (tokens, size / 2), which layers share."""
        waves = self.waves.get(rotary.key)
        if waves is None:
            F = self.F
            features = F.slice_axis(F.Cast(queries, dtype="float32"), axis=1, begin=0, end=rotary.size)
            like = F.expand_dims(features, axis=0)
            waves = [F.Reshape(each, shape=(-3, 0)) for each in rotary.waves(F, like, self.positions)]
            self.waves[rotary.key] = waves
        return waves
