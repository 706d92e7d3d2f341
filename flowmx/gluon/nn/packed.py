"""Layers whose weights stay quantized in blocks, as files of GGUF have them; the weights are constants."""

from __future__ import annotations

from typing import Any, cast

from flowmx import ndarray as nd
from flowmx.errors import ParameterError
from flowmx.gluon.hybrid import Layer
from flowmx.gluon.nn.basic_layers import Dense, Embedding
from flowmx.gluon.parameter import Contexts
from flowmx.ops.quantization.interleaved_weights import STEPS, tile_shape
from flowmx.ops.registry.dtypes import DTypeLike
from flowmx.ops.registry.operators import Array
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = ["PackedDense", "PackedEmbedding"]


class _Packed(Layer):
    """The base of both layers: a table of rows.

    Attributes:
        rows: the number of rows.
        columns: the number of values of a row.
        format: the name of the block format.
    """

    weight: Any

    def _add_weight(self, rows: int, columns: int, format: str) -> None:
        """Add the weight, whose rows are interleaved."""
        self.rows, self.columns, self.format = rows, columns, cast("Any", format)
        self.weight = self.params.get(
            "weight", shape=tile_shape(format, rows, columns), dtype="uint8", init="zeros", grad_req="null"
        )

    def set_rows(self, rows: Array, ctx: Contexts = None) -> None:
        """Set the weight to rows of a file, uint8 (rows, bytes of a row)."""
        tiles = nd.contrib.interleave_weight(nd.array(rows, dtype="uint8"), format=self.format)
        self.weight._load_init(tiles, ctx)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.columns} -> {self.rows}, {self.format})"


class PackedDense(_Packed, Dense):
    """``x · weightᵀ + bias`` with a quantized weight, along the last axis.

    Args:
        units: the number of outputs.
        in_units: the number of inputs.
        format: the name of the block format, such as ``"Q4_1"``; see ``flowmx.ops.quantization.block_formats``.
        use_bias: add a bias.
        data_bits: the number of bits to which data are rounded, in blocks of 32 values: 16, which are as exact as
            float32, or 8, which take less time if there are many rows of data, and change results by about 1 %.
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ValueError: the format is unknown, its blocks do not fit ``in_units``, or ``data_bits`` is neither 8 nor 16.
    """

    def __init__(
        self, units: int, in_units: int, format: str, use_bias: bool = False, data_bits: int = 16, **kwargs: Any
    ) -> None:  # fmt: skip
        if data_bits not in STEPS:
            raise ParameterError(f"PackedDense: data_bits is {data_bits!r}, expected 8 or 16")
        Layer.__init__(self, **kwargs)
        self.act, self.data_bits = None, data_bits
        self._add_weight(units, in_units, format)
        self.bias = self.params.get("bias", shape=(units,), init="zeros") if use_bias else None

    def cast(self, dtype: DTypeLike) -> None:
        """Change the element type of the bias; the weight stays as it is."""
        if self.bias is not None:
            self.bias.cast(dtype)
        self._clear_cached_op()

    def hybrid_forward(self, F: Functions, x: Tensor, weight: Any, bias: Any = None) -> Tensor:
        return F.contrib.packed_dense(
            x, weight, *([] if bias is None else [bias]), format=self.format, interleaved=True,
            num_hidden=self.rows, in_units=self.columns, no_bias=bias is None, data_bits=self.data_bits,
        )  # fmt: skip


class PackedEmbedding(_Packed, Embedding):
    """Rows of a quantized table, selected by index.

    Args:
        input_dim: the number of rows.
        output_dim: the length of a row.
        format: as for :class:`PackedDense`.
        dtype: the element type of the outputs.
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ValueError: as for :class:`PackedDense`.
    """

    def __init__(
        self, input_dim: int, output_dim: int, format: str, dtype: DTypeLike = "float32", **kwargs: Any
    ) -> None:  # fmt: skip
        Layer.__init__(self, **kwargs)
        self._dtype = dtype
        self._add_weight(input_dim, output_dim, format)

    def cast(self, dtype: DTypeLike) -> None:
        """Change the element type of the outputs; the table stays as it is."""
        self._dtype = dtype
        self._clear_cached_op()

    def hybrid_forward(self, F: Functions, x: Tensor, weight: Any) -> Tensor:
        return F.contrib.packed_embedding(
            x, weight, format=self.format, interleaved=True, input_dim=self.rows, output_dim=self.columns,
            dtype=self._dtype,
        )  # fmt: skip
