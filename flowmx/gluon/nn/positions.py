"""Positions for attention: learned vectors that are added, and rotations of queries and keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from flowmx.gluon.base_block import A
from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.nn.rotary_scaling import scaling_of
from flowmx.gluon.scope import BlockOptions
from flowmx.initializer import InitializerLike
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = ["LearnedPositions", "RotaryPositions"]


class LearnedPositions(HybridBlock):
    """Adds a learned vector for each position.

    Gehring et al., Convolutional Sequence to Sequence Learning, ICML 2017; BERT and GPT-2 use it.

    Inputs: ``x`` (batch, length, units), float, and optionally ``positions`` (length,), any dtype: for step-wise
    decoding, where the first position is not 0. Output: the shape and dtype of ``x``.

    Args:
        max_length: the number of positions.
        units: the length of the vectors.
        weight_initializer: the initializer of the vectors (default: normal numbers with the deviation 0.02).
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ValueError: ``max_length`` or ``units`` is below 1.
        ShapeError: the input is longer than ``max_length`` (when called).
        IndexError: a position is outside 0 to ``max_length - 1`` (when the output is read).
    """

    def __init__(
        self, max_length: int, units: int, weight_initializer: InitializerLike = None, **kwargs: Unpack[BlockOptions]
    ) -> None:
        for name, value in (("max_length", max_length), ("units", units)):
            if value < 1:
                raise ValueError(f"LearnedPositions: {name} is {value}, expected 1 or more")
        super().__init__(**kwargs)
        self._shape = (max_length, units)
        init = weight_initializer
        if init is None:
            from flowmx.initializer import Normal

            init = Normal(0.02)
        self.weight = self.params.get("weight", shape=self._shape, init=init)

    if TYPE_CHECKING:

        def __call__(self, x: A, positions: A | None = None, /) -> A: ...

    def hybrid_forward(self, F: Functions, x: Tensor, positions: Tensor | None = None, *, weight: Tensor) -> Tensor:
        rows = F.expand_dims(weight, axis=0)
        if positions is None:
            return F.broadcast_add(x, F.slice_like(rows, x, axes=(1,)))
        return F.broadcast_add(x, F.take(rows, positions, axis=1, mode="raise"))

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self._shape}"


class RotaryPositions(HybridBlock):
    """Rotates pairs of features by angles that grow with the position.

    Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021. The products of rotated queries and
    keys depend only on the distance of their positions. The pair ``i`` of ``size / 2`` rotates by ``base ** (-2 * i /
    size)`` a position.

    Inputs: ``x`` (batch, length, size), float; for several heads ``batch`` counts each head of each sample. Optionally
    ``positions`` (length,), float32 or int32: for step-wise decoding, where the first position is not 0. Output: the
    shape and dtype of ``x``. Angles are computed in float32.

    Args:
        size: the number of features, even.
        base: determines the slowest rotation.
        interleaved: a pair is two neighbors, as in the paper and GPT-J; otherwise the features ``i`` and ``i + size /
            2``, as in GPT-NeoX and LLaMA.
        scaling: slows the rotations down for texts that are longer than those of the first training: a dict with a
            ``rope_type`` and its numbers under Hugging Face's names. ``"linear"`` has a ``factor``; ``"llama3"`` also
            ``low_freq_factor``, ``high_freq_factor`` and ``original_max_position_embeddings``; ``"yarn"`` (Peng et al.,
            2023) that, and optionally ``beta_fast``, ``beta_slow`` and ``attention_factor``.
        **kwargs: ``prefix`` and ``params``.

    Attributes:
        size: the number of features.
        interleaved: whether a pair is two neighbors.
        key: equal for layers that rotate by the same angles.

    Raises:
        ValueError: the size is odd or below 2, the base is not above 0, or the scaling is unknown or incomplete.
    """

    def __init__(
        self, size: int, base: float = 10000.0, interleaved: bool = False,
        scaling: Mapping[str, object] | None = None, **kwargs: Unpack[BlockOptions],
    ) -> None:  # fmt: skip
        if size < 2 or size % 2:
            raise ValueError(f"RotaryPositions: size is {size}, expected an even number of features, 2 or more")
        if base <= 0:
            raise ValueError(f"RotaryPositions: base is {base}, expected a number above 0")
        super().__init__(**kwargs)
        self.size, self._base, self.interleaved = size, base, interleaved
        self.key = (size, base, interleaved, *sorted((scaling or {}).items()))
        self._scaling = scaling_of(scaling, size, base)

    if TYPE_CHECKING:

        def __call__(self, x: A, positions: A | None = None, /) -> A: ...

    def hybrid_forward(self, F: Functions, x: Tensor, positions: Tensor | None = None) -> Tensor:
        cosine, sine = self.waves(F, x, positions)
        if self.interleaved:
            pairs = F.Reshape(x, shape=(0, 0, self.size // 2, 2))
            one, other = (
                F.Reshape(F.slice_axis(pairs, axis=3, begin=index, end=index + 1), shape=(0, 0, -3)) for index in (0, 1)
            )
        else:
            one, other = F.split(x, num_outputs=2, axis=2)
        turned = (
            F.broadcast_sub(F.broadcast_mul(one, cosine), F.broadcast_mul(other, sine)),
            F.broadcast_add(F.broadcast_mul(other, cosine), F.broadcast_mul(one, sine)),
        )
        if self.interleaved:
            return F.Reshape(F.stack(*turned, axis=3), shape=(0, 0, -3))
        return F.concat(*turned, dim=2)

    def waves(self, F: Functions, x: Tensor, positions: Tensor | None) -> list[Tensor]:
        """Return cosines and sines of the angles, (1, length, size / 2), in the dtype of ``x``.

        Args:
            F: as for ``hybrid_forward``.
            x: the features.
            positions: their positions; None for 0, 1, ...
        """
        column = F.slice_axis(F.slice_axis(x, axis=0, begin=0, end=1), axis=2, begin=0, end=1)
        if positions is None:
            positions = F.contrib.arange_like(F.Cast(column, dtype="float32"), axis=1)
        positions = F.Reshape(F.Cast(positions, dtype="float32"), shape=(1, -1, 1))
        row = F.slice_axis(F.slice_axis(x, axis=0, begin=0, end=1), axis=1, begin=0, end=1)
        row = F.slice_axis(row, axis=2, begin=0, end=self.size // 2)
        indices = F.contrib.arange_like(F.Cast(row, dtype="float32"), axis=2)
        speeds = self._scaling.scaled(F, F.exp(indices * (-2 * math.log(self._base) / self.size)), indices)
        angles = F.broadcast_mul(positions, F.Reshape(speeds, shape=(1, 1, -1)))
        like = F._internal._cast_like
        amplitude = self._scaling.amplitude
        waves = [F.cos(angles), F.sin(angles)]
        return [like(wave if amplitude == 1 else wave * amplitude, x) for wave in waves]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size}, base={self._base:g}, interleaved={self.interleaved})"


def numbers(F: Functions, x: Tensor, axis: int) -> Tensor:
    """Return 0, 1, ... along an axis of three, as float32: 16 bits cannot count far."""
    for other in {0, 1, 2} - {axis}:
        x = F.slice_axis(x, axis=other, begin=0, end=1)
    return F.contrib.arange_like(F.Cast(x, dtype="float32"), axis=axis)


def cached_positions(F: Functions, x: Tensor, cache: Any) -> Tensor:
    """Return the positions, int32, of ``x`` (batch, length, features) after those in the cache of an attention."""
    return F.broadcast_add(F.Cast(numbers(F, x, 1), dtype="int32"), cache[2])


def first_place(F: Functions, x: Tensor) -> Tensor:
    """Return the features of the first place, (batch, features), of (batch, length, features)."""
    return F.squeeze(F.slice_axis(x, axis=1, begin=0, end=1), axis=1)
