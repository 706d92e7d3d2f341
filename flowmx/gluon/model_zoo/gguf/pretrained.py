"""Models with the weights of a GGUF file, which stay quantized."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from flowmx import ndarray as nd
from flowmx.errors import DataError, MismatchError
from flowmx.gluon import nn
from flowmx.gluon.base_block import Block
from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.model_zoo.gguf.architectures import ARCHITECTURES, Architecture, Source
from flowmx.gluon.model_zoo.gguf.metadata import Metadata
from flowmx.gluon.nn.packed import PackedDense, PackedEmbedding
from flowmx.gluon.parameter import Contexts, Parameter, _fits
from flowmx.gluon.utils import brief_list
from flowmx.ops.quantization.block_formats import FORMATS
from flowmx.ops.registry.operators import Array
from flowmx.serialization import gguf
from flowmx.suggestions import did_you_mean

__all__ = ["from_gguf"]

_PLAIN = "F32"
"""The format whose weights are ordinary parameters."""
_KINDS = {"weight": "weight", "gamma": "weight", "bias": "bias", "beta": "bias"}
"""The ends of the names of tensors, by the names of parameters."""


def from_gguf(
    path: str | os.PathLike[str], ctx: Contexts = None, dtype: Any = None, data_bits: int = 16, **options: Any
) -> HybridBlock:  # fmt: skip
    """Return a model with the weights of a GGUF file; see :func:`from_pretrained`.

    Args:
        path: the file.
        ctx: the device or devices of the weights.
        dtype: the element type of the weights; by default, matrices stay in the format of the file, and are constants.
        data_bits: the number of bits to which data are rounded before they are multiplied by quantized weights; see
            :class:`~flowmx.gluon.nn.PackedDense`.
        **options: arguments of the model in place of those in the file.

    Raises:
        ValueError: the architecture is unsupported, or tensors are missing, unknown, or of a different shape.
        OSError: the file cannot be read.
    """
    file, source = gguf.load(path), str(Path(path))
    metadata = Metadata(file, source)
    name = metadata.architecture
    if name not in ARCHITECTURES:
        raise DataError(
            f"{source}: general.architecture is {name!r}, expected one of {', '.join(ARCHITECTURES)}"
            f"{did_you_mean(name, ARCHITECTURES)}"
        )
    architecture, tensors = ARCHITECTURES[name], _Tensors(file.tensors, source)
    sizes = architecture.options(metadata, frozenset(file.tensors))
    if sizes["num_layers"] > len(file.tensors):
        raise DataError(
            f"{source}: {name}.block_count is {sizes['num_layers']}, but there are {len(file.tensors)} tensors"
        )
    sizes["vocab_size"] = len(tensors.rows("token_embd.weight").data)
    net = architecture.model(**sizes | options)
    _Loading(net, architecture, tensors, ctx, dtype, data_bits).load()
    tensors.check_all_read(architecture.ignored)
    return net


class _Rows(NamedTuple):
    """Rows in the format of a file: uint8 (rows, bytes of a row); and the number of axes of the tensor."""

    format: str
    data: Array
    axes: int

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
        return len(self.data), FORMATS[self.format].columns(self.data.shape[1])

    def values(self) -> Array:
        """Return the values, float32; a tensor with one axis is a vector."""
        values = np.ascontiguousarray(FORMATS[self.format].dequantize(np.ascontiguousarray(self.data)), np.float32)
        return values.reshape(-1) if self.axes == 1 else values


class _Tensors:
    """The tensors of a file, and which of them were read."""

    def __init__(self, tensors: dict[str, gguf.GGUFTensor], source: str) -> None:
        self._tensors, self.source = tensors, source
        self._read: set[str] = set()

    def rows(self, name: str) -> _Rows:
        """Return the rows of a tensor.

        Raises:
            DataError: it is missing, or has an unsupported format.
        """
        tensor = self._tensors.get(name)
        if tensor is None:
            raise DataError(f"{self.source} has no tensor {name!r}, but {brief_list(self._tensors)}")
        if tensor.format not in FORMATS:
            raise DataError(f"{self.source}: {name!r} is in {tensor.format}, expected one of {', '.join(FORMATS)}")
        if len(tensor.shape) not in (1, 2):
            raise DataError(f"{self.source}: {name!r} has shape {tensor.shape}, expected one or two axes")
        self._read.add(name)
        return _Rows(tensor.format, tensor.data, len(tensor.shape))

    def joined(self, source: Source, layer: str, kind: str, heads: int) -> _Rows:
        """Return the rows of a parameter of a layer; tensors of different formats are joined in float32."""
        names = [f"{name.replace('N', layer)}.{kind}" for name in source.tensors]
        parts = [self.rows(name) for name in names]
        rows = parts[0]
        if rows.axes == 1 and (source.order is not None or source.part != (0, 1)):
            rows = rows._replace(data=_as_bytes(rows.values().reshape(-1, 1)), format=_PLAIN)
        if len(parts) > 1:
            if len({part.format for part in parts}) > 1 or len({part.data.shape[1] for part in parts}) > 1:
                parts = [_Rows(_PLAIN, _as_bytes(part.values()), part.axes) for part in parts]
            rows = parts[0]._replace(data=np.concatenate([part.data for part in parts]))
        count = len(rows.data)
        at, number = source.part
        if count % number or (source.order is not None and count % (2 * heads)):
            raise MismatchError(f"{self.source}: {names[0]!r} has {count} rows, expected a multiple for {heads} heads")
        if number > 1:
            rows = rows._replace(data=rows.data[at * count // number : (at + 1) * count // number])
        return rows if source.order is None else rows._replace(data=rows.data[source.order(count, heads)])

    def check_all_read(self, ignored: frozenset[str]) -> None:
        """Raise a DataError if a tensor was not read."""
        unread = [name for name in self._tensors if name not in self._read and name not in ignored]
        if unread:
            raise DataError(f"{self.source} has the tensor {unread[0]!r}, which the model does not have")


def _as_bytes(values: Array) -> Array:
    return np.ascontiguousarray(values, np.float32).view(np.uint8)


class _Loading:
    """A model whose weights are being set."""

    def __init__(
        self, net: HybridBlock, architecture: Architecture, tensors: _Tensors, ctx: Contexts, dtype: Any,
        data_bits: int,
    ) -> None:  # fmt: skip
        self._net, self._names, self._tensors, self._ctx, self._dtype = net, architecture.names, tensors, ctx, dtype
        self._data_bits = data_bits
        self._packed: dict[Parameter, PackedDense | PackedEmbedding] = {}
        """The packed layers by the parameters that they replace."""

    def load(self) -> None:
        """Set all parameters; layers with quantized weights replace the others."""
        if self._dtype is None:
            self._replace_matrices()
        done = {packed.weight for packed in self._packed.values()}
        for path, parameter in self._net._collect_params_with_prefix().items():
            if parameter not in done:
                done.add(parameter)
                self._set(path, parameter)

    def _replace_matrices(self) -> None:
        """Replace layers by those with quantized weights."""
        plain: set[Parameter] = set()
        for path, parameter in self._net._collect_params_with_prefix().items():
            block, _, kind = path.rpartition(".")
            if parameter in self._packed:  # tied weights
                self._tie(block, self._packed[parameter])
            elif kind == "weight" and parameter not in plain and self._is_matrix(block):
                rows = self._rows(block, kind)
                if rows.format == _PLAIN:
                    plain.add(parameter)
                else:
                    self._replace(block, parameter, rows)

    def _is_matrix(self, path: str) -> bool:
        """Return whether a block has a matrix that may stay quantized."""
        return isinstance(_child(self._net, path), (nn.Dense, nn.Embedding))

    def _rows(self, path: str, kind: str) -> _Rows:
        """Return the rows of a parameter of a block."""
        number = re.search(r"\.(\d+)\.", path)
        general = path if number is None else path.replace(number[0], ".N.", 1)
        layer = number[1] if number else ""
        return self._tensors.joined(self._names[general], layer, _KINDS[kind], self._heads(path))

    def _set(self, path: str, parameter: Parameter) -> None:
        """Set an ordinary parameter."""
        block, _, kind = path.rpartition(".")
        values = self._rows(block, kind).values()
        if not _fits(values.shape, parameter.shape or ()):
            raise MismatchError(
                f"{self._tensors.source}: {path} has shape {values.shape}, expected {parameter.shape}: the metadata do "
                "not fit it"
            )
        dtype = "float32" if self._dtype is None else self._dtype
        parameter.cast(dtype)
        parameter._load_init(nd.array(values, dtype=dtype), self._ctx)

    def _heads(self, path: str) -> int:
        """Return the number of heads whose rows a block has; 1 for other blocks."""
        parent, _, name = path.rpartition(".")
        if name not in ("query", "key"):
            return 1
        attention = cast("nn.MultiHeadAttention", _child(self._net, parent))
        return attention.num_heads if name == "query" else attention.page_heads[0]

    def _replace(self, path: str, parameter: Parameter, rows: _Rows) -> None:
        """Replace a layer by one with a quantized weight.

        Raises:
            MismatchError: the rows do not fit the layer.
        """
        count, columns = rows.shape
        if not _fits((count, columns), parameter.shape or ()):
            raise MismatchError(f"{self._tensors.source}: {path} has shape {rows.shape}, expected {parameter.shape}")
        parent, name, layer = self._place(path)
        packed: PackedDense | PackedEmbedding
        with parent.name_scope():
            if isinstance(layer, nn.Embedding):
                packed = PackedEmbedding(count, columns, rows.format)
            else:
                packed = PackedDense(count, columns, rows.format, layer.bias is not None, self._data_bits)
        packed.set_rows(rows.data, self._ctx)
        self._packed[parameter] = packed
        setattr(parent, name, packed)

    def _tie(self, path: str, table: PackedDense | PackedEmbedding) -> None:
        """Replace a layer by one that has the quantized weight of a table."""
        parent, name, _ = self._place(path)
        with parent.name_scope():
            packed = PackedDense(
                table.rows, table.columns, table.format, data_bits=self._data_bits, params=table.params
            )
            setattr(parent, name, packed)

    def _place(self, path: str) -> tuple[Any, str, Any]:
        """Return the parent of a layer, the name of the layer there, and the layer."""
        parent_path, _, name = path.rpartition(".")
        parent = _child(self._net, parent_path)
        return parent, name, getattr(parent, name)


def _child(block: Block, path: str) -> Block:
    """Return the block at a path of attributes and indices."""
    for name in path.split(".") if path else []:
        block = block[int(name)] if name.isdigit() else getattr(block, name)  # type: ignore[index]
    return block
