"""Loading of models as Gluon blocks: from blocks, symbols with parameters, checkpoints, folders, ONNX files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowmx import symbol as sym
from flowmx.gluon import Block, HybridBlock, SymbolBlock
from flowmx.model import read_params
from flowmx.ops.registry.parameters import literal
from flowmx.serve.inputs import Input
from flowmx.symbol import Symbol

__all__ = ["Source", "load"]

_LABEL = "label"
"""Suffix of the names of losses' inputs, which predictions do not read."""


class Source(NamedTuple):
    """A model that was found.

    Attributes:
        block: computes it.
        inputs: what it takes.
        symbol: its symbol, where it was one.
        unread: inputs of losses, which get zeros.
        outputs: their names, where they are known.
    """

    block: Block
    inputs: list[Input]
    symbol: Symbol | None = None
    unread: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


def load(model: Any, shape: Any = None, dtype: Any = None, params: Any = None, epoch: int | None = None) -> Source:
    """Find a model.

    Args:
        model: a Gluon block; a symbol; the prefix of a checkpoint; a folder with one; or an ONNX file.
        shape: of a row, or of a row of each input by name (None: as the ONNX file says).
        dtype: of the inputs, or by name (default float32).
        params: of a symbol: arrays by name (``arg:`` and ``aux:`` before names are taken off), or a file.
        epoch: which of a checkpoint's (default: the latest).

    Raises:
        TypeError: ``model`` is something else.
        ValueError: inputs or parameters are not known.
        OSError: a file is missing or can not be read.
    """
    if isinstance(model, Block):
        return Source(_ready(model), _inputs(shape, dtype, ["data"]))
    if isinstance(model, Symbol):
        if params is None:
            raise ValueError("a symbol needs its parameters: give params=..., a dict of arrays or a .params file")
        return _of_symbol(model, _params(params), shape, dtype)
    if not isinstance(model, (str, os.PathLike)):
        raise TypeError(
            f"the model is a {type(model).__name__}, expected a Gluon block, a symbol (with params=...), the prefix of "
            "a checkpoint, a folder, or an ONNX file"
        )
    return _of_path(Path(model), shape, dtype, epoch)


def _of_path(path: Path, shape: Any, dtype: Any, epoch: int | None) -> Source:
    if path.suffix == ".onnx":
        return _of_onnx(path, shape, dtype)
    if path.is_dir():
        found = sorted([*path.glob("*-symbol.json"), *path.glob("*.onnx")])
        if len(found) != 1:
            listed = ", ".join(each.name for each in found) or "none"
            raise ValueError(
                f"{path} must hold one model, a -symbol.json with a .params file, or .onnx; found {listed}"
            )
        if found[0].suffix == ".onnx":
            return _of_onnx(found[0], shape, dtype)
        path = path / found[0].name.removesuffix("-symbol.json")
    weights = _weights(path, epoch)
    return _of_symbol(sym.load(f"{path}-symbol.json"), _params(weights), shape, dtype)


def _weights(prefix: Path, epoch: int | None) -> Path:
    """The file of a checkpoint's parameters."""
    if epoch is not None:
        return Path(f"{prefix}-{epoch:04d}.params")
    found = sorted(prefix.parent.glob(f"{prefix.name}-[0-9][0-9][0-9][0-9].params"))
    if not found:
        raise FileNotFoundError(f"there is no {prefix}-0000.params (or of another epoch), which the parameters are in")
    return found[-1]


def _params(given: Any) -> dict[str, Any]:
    if isinstance(given, (str, os.PathLike)):
        arguments, auxiliary = read_params(os.fspath(given))
        return {**arguments, **auxiliary}
    return {name.removeprefix("arg:").removeprefix("aux:"): array for name, array in given.items()}


def _of_onnx(path: Path, shape: Any, dtype: Any) -> Source:
    from flowmx.contrib.onnx import get_model_metadata, import_model

    symbol, arguments, auxiliary = import_model(path)
    if shape is None:
        described = get_model_metadata(path)["input_tensor_data"]
        shape = {name: tuple(size or None for size in sizes[1:]) for name, sizes in described}
    return _of_symbol(symbol, {**arguments, **auxiliary}, shape, dtype)


def _of_symbol(symbol: Symbol, params: Mapping[str, Any], shape: Any, dtype: Any) -> Source:
    free = [name for name in symbol.list_inputs() if name not in params]
    shape = _known(symbol, free) if shape is None else shape
    unread = tuple(name for name in free if name.endswith(_LABEL) and not _names(shape, name))
    inputs = _inputs(shape, dtype, [name for name in free if name not in unread])
    missing = [name for name in free if name not in unread and name not in {each.name for each in inputs}]
    if missing:
        raise ValueError(
            f"{', '.join(missing)} are neither parameters that were given nor inputs: give params for them, or their "
            "shapes in shape={...}"
        )
    names = [*(each.name for each in inputs), *unread]
    block = SymbolBlock(symbol, [sym.var(name) for name in names])
    for name, parameter in block.collect_params().items():
        array = params[name]
        parameter.cast(array.dtype)
        parameter._load_init(array, None)
    return Source(_ready(block), inputs, symbol, unread, tuple(symbol.list_outputs()))


def _known(symbol: Symbol, free: Sequence[str]) -> dict[str, tuple[int | None, ...]] | None:
    """The shapes of rows that the symbol's variables were made with, if all of its inputs were."""
    attributes = symbol.attr_dict()
    texts = {name: attributes.get(name, {}).get("__shape__") for name in free if not name.endswith(_LABEL)}
    if not texts or None in texts.values():
        return None
    shapes = {name: literal(str(text)) for name, text in texts.items()}
    return {name: tuple(size or None for size in sizes[1:]) for name, sizes in shapes.items()}


def _names(shape: Any, name: str) -> bool:
    return isinstance(shape, Mapping) and name in shape


def _inputs(shape: Any, dtype: Any, free: Sequence[str]) -> list[Input]:
    """The inputs, of the shapes that were given."""
    if shape is None:
        raise ValueError(
            f"the shape of a row of {', '.join(free)} is not known: give shape=(3, 32, 32), or shape={{name: (...)}}"
        )
    if not isinstance(shape, Mapping):
        if len(free) != 1:
            raise ValueError(
                f"one shape was given, and the inputs are {', '.join(free) or 'none'}: give {{name: shape}}"
            )
        shape = {free[0]: shape}
    dtypes = dtype if isinstance(dtype, Mapping) else dict.fromkeys(shape, dtype)
    return [Input(name, tuple(sizes), np.dtype(dtypes.get(name) or np.float32)) for name, sizes in shape.items()]


def _ready(block: Block) -> Block:
    """A block that computes compiled graphs, with its memory kept, unless its owner has decided otherwise."""
    if isinstance(block, HybridBlock) and not block._active:
        block.hybridize(static_alloc=True, static_shape=True)
    return block
