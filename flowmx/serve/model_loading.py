"""Loads models as Gluon blocks from blocks, symbols with parameters, checkpoints, folders and ONNX files."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowmx import symbol as sym
from flowmx.artifacts import open_artifact
from flowmx.artifacts.input_shapes import declared_shapes
from flowmx.errors import AdviceError
from flowmx.gluon import Block, HybridBlock, SymbolBlock
from flowmx.gluon.model_zoo import huggingface
from flowmx.model import read_params
from flowmx.ops.registry.parameters import literal
from flowmx.serve.inputs import Input
from flowmx.serve.unread_labels import without_computed_labels
from flowmx.symbol import Symbol

__all__ = ["Source", "load", "onnx_file"]

_log = logging.getLogger("flowmx.serve")

_LABEL = "label"
"""Suffix of the names of labels, which predictions do not use."""


class Source(NamedTuple):
    """A loaded model.

    Attributes:
        block: the block that computes it.
        inputs: its inputs.
        symbol: its symbol, if it was loaded from one.
        labels: names of labels, which are filled with zeros.
        outputs: names of the outputs, if known.
    """

    block: Block
    inputs: list[Input]
    symbol: Symbol | None = None
    labels: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


def load(
    model: object, shape: object = None, dtype: object = None, params: object = None, epoch: int | None = None,
    constants: Mapping[str, object] | None = None, axes: Mapping[str, int] | None = None,
) -> Source:  # fmt: skip
    """Load a model.

    Args:
        model: a Gluon block, a symbol, the prefix of a checkpoint, a folder with one model
            (also of Hugging Face's Transformers), an archive of one (``model.tar.gz``), or an ONNX file.
        shape: shape of a row, or a dict of shapes by input name (None: as the ONNX file declares).
        dtype: dtype of the inputs, or a dict by name (default float32).
        params: parameters of a symbol: arrays by name (prefixes ``arg:`` and ``aux:`` are removed), or a file.
        epoch: epoch of the checkpoint (default: the latest).
        constants: the content of inputs of an ONNX file that are always the same, by name.
        axes: for an ONNX file, the position of the batch axis of inputs where it is not in front, by name.

    Raises:
        TypeError: ``model`` is something else.
        ValueError: the inputs, constants or parameters are unknown.
        OSError: a file is missing or cannot be read.
    """
    file = onnx_file(model)
    if constants and file is None:
        raise ValueError(f"constants are {', '.join(constants)}, expected none: they are for ONNX files")
    if isinstance(model, Block):
        return Source(_hybridized(model), _inputs(shape, dtype, ["data"]))
    if isinstance(model, Symbol):
        if params is None:
            raise ValueError("a symbol needs its parameters: pass params=..., a dict of arrays or a .params file")
        return _of_symbol(model, _params(params), shape, dtype)
    if not isinstance(model, (str, os.PathLike)):
        raise TypeError(
            f"the model is a {type(model).__name__}, expected a Gluon block, a symbol (with params=...), the prefix of "
            "a checkpoint, a folder, or an ONNX file"
        )
    if Path(model).suffix == ".onnx":
        return _of_onnx(Path(model), shape, dtype, constants, axes)
    artifact = open_artifact(Path(model))
    return _of_path(artifact.path, shape, dtype, epoch)


def onnx_file(model: object) -> Path | None:
    """Return the ONNX file that a model is, or the only model of a folder; None for other models."""
    if not isinstance(model, (str, os.PathLike)):
        return None
    path = Path(model)
    if path.suffix != ".onnx" and path.is_dir() and not huggingface.is_model(path):
        files = sorted([*path.glob("*-symbol.json"), *path.glob("*.onnx")])
        path = files[0] if len(files) == 1 else path
    return path if path.suffix == ".onnx" else None


def _of_path(path: Path, shape: object, dtype: object, epoch: int | None) -> Source:
    if path.is_dir():
        if huggingface.is_model(path):
            symbol, arrays = huggingface.as_symbol(path, shape if isinstance(shape, Mapping) else None)
            return _of_symbol(symbol, arrays, shape, dtype)
        files = sorted([*path.glob("*-symbol.json"), *path.glob("*.onnx")])
        if len(files) != 1:
            raise _no_single_model(path, files)
        path = path / files[0].name.removesuffix("-symbol.json")
    path, epoch = _prefix(path, epoch)
    weights = _weights(path, epoch)
    return _of_symbol(
        sym.load(f"{path}-symbol.json"), _params(weights), shape or declared_shapes(path.parent) or None, dtype
    )


def _no_single_model(path: Path, files: Sequence[Path]) -> ValueError:
    listing = ", ".join(file.name for file in files) or "none"
    text = (
        f"{path} must hold one model, a -symbol.json with a .params file, .onnx, or config.json with "
        f"model.safetensors; found {listing}"
    )
    patterns = ("*-symbol.json", "*.onnx", "config.json", "model.toml")
    folders = [each for each in sorted(path.iterdir()) if each.is_dir() and any(any(each.glob(p)) for p in patterns)]
    if not folders:
        return ValueError(text)
    names = ", ".join(str(each) for each in folders[:5])
    return AdviceError(
        f"{text} and models in folders",
        f"pass one of {names}, or serve all with mx.serve.Repository({str(path)!r})",
        f"pass one of {names}, or serve all with --repository {path}",
    )


def _prefix(path: Path, epoch: int | None) -> tuple[Path, int | None]:
    """Return the prefix and the epoch of a checkpoint, of which ``path`` may also be one of the files.

    Raises:
        FileNotFoundError: there is no checkpoint.
    """
    of_params = re.fullmatch(r"(.+)-(\d{4})\.params", path.name)
    if path.name.endswith("-symbol.json"):
        path = path.with_name(path.name.removesuffix("-symbol.json"))
    elif of_params is not None:
        path, epoch = path.with_name(of_params[1]), int(of_params[2]) if epoch is None else epoch
    if not Path(f"{path}-symbol.json").exists():
        if path.is_file() and path.suffix != ".onnx":
            raise ValueError(
                f"{path} is not a model file, expected a folder with a model, an .onnx or .gguf file, or the prefix of "
                "a checkpoint; a .params file holds only arrays, without the network: `flowmx inspect` shows what it is"
            )
        raise FileNotFoundError(
            f"there is no model {str(path)!r}: expected a folder with a model, an .onnx file, or the prefix of a "
            f"checkpoint, whose files are {path.name}-symbol.json and {path.name}-0000.params"
        )
    return path, epoch


def _weights(prefix: Path, epoch: int | None) -> Path:
    """Return the parameter file of a checkpoint."""
    if epoch is not None:
        return Path(f"{prefix}-{epoch:04d}.params")  # the error of a missing file names the other epochs
    files = sorted(prefix.parent.glob(f"{prefix.name}-[0-9][0-9][0-9][0-9].params"))
    if not files:
        raise FileNotFoundError(
            f"there is {prefix}-symbol.json, but no parameter file {prefix}-0000.params, nor one of another epoch"
        )
    return files[-1]


def _params(source: Any) -> dict[str, Any]:
    if isinstance(source, (str, os.PathLike)):
        arguments, auxiliary = read_params(os.fspath(source))
        return {**arguments, **auxiliary}
    return {name.removeprefix("arg:").removeprefix("aux:"): array for name, array in source.items()}


def _of_onnx(
    path: Path, shape: object, dtype: object, constants: Mapping[str, object] | None = None,
    axes: Mapping[str, int] | None = None,
) -> Source:  # fmt: skip
    from flowmx.contrib.onnx import ONNXError, get_model_metadata, import_model, import_to_gluon

    metadata = get_model_metadata(path)
    declared = [(name, sizes) for name, sizes in metadata["input_tensor_data"] if name not in (constants or {})]
    if shape is None:
        shape = {name: tuple(size or None for size in sizes[1:]) for name, sizes in declared}
    elif axes is None:
        _compare_shapes(path, declared, shape)
    input_shapes = None if axes is None else _input_shapes(shape, axes)
    try:
        symbol, arguments, auxiliary = import_model(path, input_shapes=input_shapes, constants=constants)
    except ONNXError:  # no single graph computes all shapes, or this raises the same error
        block: Block = import_to_gluon(path, constants=constants)
        names = [name for name, _ in declared]
        inputs = _inputs(shape, dtype, names)
        order = [spec.name for spec in inputs]
        if order != names and set(order) == set(names):
            block = _Reordered(_hybridized(block), [order.index(name) for name in names])
        outputs = tuple(name for name, _ in metadata["output_tensor_data"])
        return Source(_hybridized(block), inputs, outputs=outputs)
    return _of_symbol(symbol, {**arguments, **auxiliary}, shape, dtype)


def _compare_shapes(path: Path, declared: Sequence[tuple[str, Sequence[int]]], shape: object) -> None:
    """Log shapes that differ from those that an ONNX file declares, because some models can compute them."""
    shapes = shape if isinstance(shape, Mapping) else {name: shape for name, _ in declared[:1]}
    for name, sizes in declared:
        row, new = tuple(size or None for size in sizes[1:]), shapes.get(name)
        if isinstance(new, Sequence) and not _fits(row, new):
            _log.warning("%s declares the shape %s of a sample of %s, and shape is %s", path, row, name, tuple(new))


def _fits(row: Sequence[int | None], new: Sequence[int | None]) -> bool:
    return len(row) == len(new) and all(size is None or size == other for size, other in zip(row, new, strict=True))


def _input_shapes(shape: object, axes: Mapping[str, int]) -> dict[str, tuple[int | str | None, ...]]:
    """Return the shapes of the inputs with their batch axes, all of the same length."""
    shapes = {name: tuple(sizes) for name, sizes in shape.items()} if isinstance(shape, Mapping) else {}
    places = {name: axes.get(name, 0) for name in shapes}
    return {name: (*sizes[: places[name]], "batch", *sizes[places[name] :]) for name, sizes in shapes.items()}


class _Reordered(Block):
    """A block with its arguments in another order."""

    def __init__(self, block: Block, places: Sequence[int]) -> None:
        super().__init__(prefix="")
        self.block, self._places = block, tuple(places)

    def forward(self, *args: Any) -> Any:
        return self.block(*[args[place] for place in self._places])


def _of_symbol(symbol: Symbol, params: Mapping[str, Any], shape: Any, dtype: Any) -> Source:
    input_names = [name for name in symbol.list_inputs() if name not in params]
    shape = _declared_shapes(symbol, input_names) if shape is None else shape
    labels = _labels(input_names, shape)
    if labels:
        symbol = without_computed_labels(symbol, labels)
        input_names = [name for name in symbol.list_inputs() if name not in params]
        labels = _labels(input_names, shape)
    inputs = _inputs(shape, dtype, [name for name in input_names if name not in labels])
    missing = [name for name in input_names if name not in labels and name not in {spec.name for spec in inputs}]
    if missing:
        raise AdviceError(
            f"{', '.join(missing)} are neither parameters nor inputs",
            "pass their arrays in params, or their shapes in shape={...}",
            f"pass their shapes: --shape {missing[0]}=SIZES, or a file that has their arrays",
        )
    names = [*(spec.name for spec in inputs), *labels]
    block = SymbolBlock(symbol, [sym.var(name) for name in names])
    for name, parameter in block.collect_params().items():
        array = params[name]
        parameter.cast(array.dtype)
        parameter._load_init(array, None)
    return Source(_hybridized(block), inputs, symbol, labels, tuple(symbol.list_outputs()))


def _declared_shapes(symbol: Symbol, input_names: Sequence[str]) -> dict[str, tuple[int | None, ...]] | None:
    """Return the row shapes declared by the symbol's variables, if every input declares one."""
    attributes = symbol.attr_dict()
    texts = {name: attributes.get(name, {}).get("__shape__") for name in input_names if not name.endswith(_LABEL)}
    if not texts or None in texts.values():
        return None
    shapes = {name: literal(str(text)) for name, text in texts.items()}
    return {name: tuple(size or None for size in sizes[1:]) for name, sizes in shapes.items()}


def _labels(input_names: Sequence[str], shape: object) -> tuple[str, ...]:
    return tuple(name for name in input_names if name.endswith(_LABEL) and not _names(shape, name))


def _names(shape: object, name: str) -> bool:
    return isinstance(shape, Mapping) and name in shape


def _inputs(shape: Any, dtype: Any, input_names: Sequence[str]) -> list[Input]:
    """Return the inputs with these shapes."""
    if shape is None:
        raise AdviceError(
            f"the shape of a sample of {', '.join(input_names)} is unknown",
            "pass shape=(3, 32, 32), or shape={name: (...)}",
            f"pass --shape 3,32,32, or --shape {input_names[0]}=3,32,32 for each input",
        )
    if isinstance(shape, (str, int)):
        raise TypeError(
            f"shape is {shape!r}, expected a tuple of sizes such as (3, 32, 32), or a dict of them by input"
        )
    if not isinstance(shape, Mapping):
        if len(input_names) != 1:
            raise ValueError(
                f"shape is a single shape, and the inputs are {', '.join(input_names) or 'none'}: pass {{name: shape}}"
            )
        shape = {input_names[0]: shape}
    dtypes = dtype if isinstance(dtype, Mapping) else dict.fromkeys(shape, dtype)
    return [Input(name, tuple(sizes), _dtype(dtypes.get(name))) for name, sizes in shape.items()]


def _dtype(value: Any) -> np.dtype[Any]:
    try:
        return np.dtype(value or np.float32)
    except TypeError:
        raise TypeError(f"dtype is {value!r}, expected a name such as float32, float16, uint8 or int32") from None


def _hybridized(block: Block) -> Block:
    """Hybridize a block with static memory, unless it is already hybridized."""
    if isinstance(block, HybridBlock) and not block._active:
        block.hybridize(static_alloc=True, static_shape=True)
    return block
