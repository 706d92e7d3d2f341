"""Compare a network with its source code: both compute outputs and gradients of the same random inputs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowmx import ndarray
from flowmx.executor import Executor
from flowmx.gluon import HybridBlock
from flowmx.graph.node import Entry, Node
from flowmx.ndarray import NDArray
from flowmx.ops.registry.operators import Array, lookup
from flowmx.serialization import safetensors
from flowmx.source_code.writing import Source
from flowmx.symbol import Symbol

__all__ = ["CheckError", "Differences", "compare", "compare_block", "random_inputs"]

_PROGRAM = Path(__file__).parent / "torch" / "run_module.py"
_NOISE = 1e-8
"""Gradients below this part of the largest one are taken as 0."""


class CheckError(ValueError):
    """The written module does not run."""


class Differences(NamedTuple):
    """The largest differences, relative to the largest number in each array.

    Attributes:
        outputs: of the outputs, in float32.
        gradients: of the gradients, in float64.
        output_name: the output with the largest difference.
        gradient_name: the array with the largest difference of gradients.
    """

    outputs: float
    gradients: float
    output_name: str
    gradient_name: str


def random_inputs(shapes: Mapping[str, Sequence[int]], types: Mapping[str, np.dtype[np.generic]]) -> dict[str, Array]:
    """Return random arrays: numbers from 0 to 1, or integers from 0 to 3."""
    rng = np.random.default_rng(0)
    return {
        name: rng.uniform(0, 1, shape).astype(types[name])
        if types[name].kind == "f"
        else rng.integers(0, 4, shape).astype(types[name])
        for name, shape in shapes.items()
    }


def compare(
    source: Source, symbol: Symbol, inputs: Mapping[str, Array], python: str = sys.executable, gradients: bool = True
) -> Differences:
    """Run the symbol and the written module on the same inputs.

    Args:
        source: the written module.
        symbol: the network.
        inputs: the inputs by name.
        python: the interpreter that has torch.
        gradients: whether to compare gradients in training mode, without dropout.

    Raises:
        CheckError: the module does not run.
    """
    state = source.state_dict()
    plain = _without_heads(symbol)
    outputs = _run(plain, inputs, source.arrays)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "module.py").write_text(source.text, encoding="utf-8")
        safetensors.save(folder / "state.safetensors", state)
        _save(folder / "inputs.npz", list(inputs.values()))
        heads: list[Array] = []
        expected: dict[str, Array] = {}
        if gradients:
            heads, expected = _gradients(_without_dropout(plain), inputs, source)
        _save(folder / "heads.npz", heads)
        _call(python, folder, source.name)
        with np.load(folder / "results.npz") as file:
            results = dict(file.items())
    pairs = {
        name: (output, results[f"output:{i}"])
        for i, (name, output) in enumerate(zip(source.outputs, outputs, strict=True))
    }
    of_output, output_name = _largest(pairs, 0.0)
    scale = max((np.abs(array).max(initial=0) for array in expected.values()), default=0.0)
    of_gradient, gradient_name = _largest(
        {
            name: (array, results[f"gradient:{name}"])
            for name, array in expected.items()
            if f"gradient:{name}" in results
        },
        float(scale) * _NOISE / 1e-4,
    )
    return Differences(of_output, of_gradient, output_name, gradient_name)


def compare_block(source: Source, symbol: Symbol, inputs: Mapping[str, Array], weights: Path) -> float:
    """Run the symbol and the written Gluon block; return the largest difference of the outputs.

    Args:
        source: the written block.
        symbol: the network.
        inputs: the inputs by name.
        weights: the file of the block's parameters.
    """
    content: dict[str, Any] = {"__name__": "written"}
    exec(compile(source.text, "written", "exec"), content)  # flowmx wrote it
    block: HybridBlock = content[source.name]()
    block.load_parameters(str(weights))
    results = block(*[ndarray.array(array, dtype=array.dtype) for array in inputs.values()])
    outputs = list(results) if isinstance(results, (list, tuple)) else [results]
    expected = _run(_without_heads(symbol), inputs, source.arrays)
    pairs = {name: (one, other.asnumpy()) for name, one, other in zip(source.outputs, expected, outputs, strict=True)}
    return _largest(pairs, 0.0)[0]


def _save(path: Path, arrays: Sequence[Array]) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for index, array in enumerate(arrays):
            with file.open(f"{index:04d}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def _call(python: str, folder: Path, name: str) -> None:
    try:
        done = subprocess.run([python, str(_PROGRAM), str(folder), name], capture_output=True, text=True, check=False)
    except OSError as error:
        raise CheckError(f"{python} cannot run: {error}; name the interpreter that has torch with --python") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise CheckError(f"the written module does not run in {python}: {' | '.join(lines[-3:])}")


def _largest(pairs: Mapping[str, tuple[Array, Array]], least: float) -> tuple[float, str]:
    worst, worst_name = 0.0, ""
    for name, (one, other) in pairs.items():
        if one.shape != other.shape:
            raise CheckError(f"{name} has shape {other.shape} in the written module, expected {one.shape}")
        if not one.size:
            continue
        difference = np.abs(one.astype(np.float64) - other.astype(np.float64))
        difference[(one == other) | (np.isnan(one) & np.isnan(other))] = 0
        finite = np.abs(one[np.isfinite(one)]).max(initial=0)
        value = float(difference.max()) / max(float(finite), least, 1e-30)
        if not value <= worst:
            worst, worst_name = value, name
    return worst, worst_name


# -- flowmx's side ---------------------------------------------------------------------------------------------------


def _run(symbol: Symbol, inputs: Mapping[str, Array], arrays: Mapping[str, NDArray]) -> list[Array]:
    executor = _bind(symbol, inputs, arrays, "null", None)
    return [output.asnumpy() for output in executor.forward(is_train=False)]


def _bind(
    symbol: Symbol, inputs: Mapping[str, Array], arrays: Mapping[str, NDArray], grad_req: str, dtype: str | None
) -> Executor:
    def convert(name: str) -> NDArray:
        array = arrays[name] if name in arrays else ndarray.array(inputs[name], dtype=inputs[name].dtype)
        return array.astype(dtype) if dtype and array.dtype == np.float32 else array.copy()

    arguments = {name: convert(name) for name in symbol.list_arguments()}
    states = {name: convert(name) for name in symbol.list_auxiliary_states()}
    kinds = {name: grad_req if array.dtype in (np.float32, np.float64) else "null" for name, array in arguments.items()}
    buffers = {name: ndarray.zeros_like(array) for name, array in arguments.items() if kinds[name] != "null"}
    return symbol.bind(None, arguments, buffers, kinds, states)


def _gradients(symbol: Symbol, inputs: Mapping[str, Array], source: Source) -> tuple[list[Array], dict[str, Array]]:
    """Return head gradients, and the gradients of the entries of the state dict and of the inputs."""
    executor = _bind(symbol, inputs, source.arrays, "write", "float64")
    outputs = executor.forward(is_train=True)
    rng = np.random.default_rng(1)
    heads = [rng.normal(size=output.shape) for output in outputs]
    executor.backward([
        ndarray.array(head, dtype=output.dtype) for head, output in zip(heads, outputs, strict=True)
    ])  # fmt: skip
    values = {name: array for name, array in executor.grad_dict.items() if array is not None}
    result = {}
    for name, state in source.state.items():
        if all(each in values for each in state.sources):
            result[name] = Source.entry(state, values)
    names = [name for name in inputs if name in values]
    result |= {f"input {list(inputs).index(name)}": values[name].asnumpy() for name in names}
    return heads, result


def _rewrite(symbol: Symbol, replacements: Mapping[str, str]) -> Symbol:
    """Return a symbol with other operators for some of its operators; "" for the operator's first input."""
    table: dict[Entry, Entry] = {}

    def move(entry: Entry) -> Entry:
        return table.get(entry, entry)

    for node in symbol.nodes():
        if node.op is None:
            continue
        inputs = tuple(map(move, node.inputs))
        new = replacements.get(node.op.name)
        if new is None and "float64" in replacements and getattr(node.op, "dtype", None) == np.float32:
            values = {name: getattr(node.op, name) for name in node.op.parameters}
            copy = Node(
                type(node.op).create(**{**values, "dtype": np.dtype(np.float64)}), node.name, inputs, node.attributes
            )
            table.update({Entry(node, i): Entry(copy, i) for i in range(node.outputs())})
        elif new is None:
            copy = (
                Node(node.op, node.name, inputs, node.attributes, node.user_parameters)
                if inputs != node.inputs
                else node
            )
            table.update({Entry(node, i): Entry(copy, i) for i in range(node.outputs())})
        elif new == "" or (new == "training" and getattr(node.op, "mode", "") == "training"):
            table[Entry(node, 0)] = inputs[0]
        else:
            table[Entry(node, 0)] = _plain(node, new, inputs[0])
    return Symbol([move(entry) for entry in symbol.entries])


def _plain(node: Node, name: str, data: Entry) -> Entry:
    parameters = {"axis": -1 if getattr(node.op, "preserve_shape", False) else 1} if name == "softmax" else {}
    return Entry(Node(lookup(name).create(**parameters), node.name, (data,)), 0)


def _without_heads(symbol: Symbol) -> Symbol:
    """Return a symbol with ordinary operators instead of output layers, whose gradients do not depend on the head's."""
    return _rewrite(
        symbol,
        {
            "SoftmaxOutput": "softmax", "LogisticRegressionOutput": "sigmoid", "LinearRegressionOutput": "",
            "MAERegressionOutput": "", "SVMOutput": "", "MakeLoss": "", "make_loss": "",
        },
    )  # fmt: skip


def _without_dropout(symbol: Symbol) -> Symbol:
    """Return a symbol without dropout, which computes in float64."""
    return _rewrite(symbol, {"Dropout": "", "float64": ""})
