"""Write the source code of a network and the file of its parameters."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flowmx.ndarray import NDArray
from flowmx.ops.registry.operators import Array, DType
from flowmx.source_code import gluon, torch
from flowmx.source_code.blocks import Body, find_blocks
from flowmx.source_code.description import State
from flowmx.source_code.literals import display_name
from flowmx.source_code.members import entries
from flowmx.source_code.printer import Printer, Style
from flowmx.source_code.reading import Lengths, Table, read
from flowmx.symbol import Symbol

__all__ = ["Source", "to_gluon", "to_torch"]


_WIDTH = 100
"""The width of docstrings."""


class Source(NamedTuple):
    """A network as source code.

    Attributes:
        name: the name of its class.
        text: the source code.
        state: the entries of the state dict.
        arrays: the parameters in the checkpoint.
        inputs: the names of the inputs.
        outputs: the names of the outputs.
    """

    name: str
    text: str
    state: dict[str, State]
    arrays: Mapping[str, NDArray]
    inputs: list[str]
    outputs: list[str]

    def state_dict(self) -> dict[str, Array]:
        """Return the state dict."""
        return {name: self.entry(state, self.arrays) for name, state in self.state.items()}

    @staticmethod
    def entry(state: State, arrays: Mapping[str, NDArray]) -> Array:
        """Compute an entry of the state dict."""
        sources = [arrays[name].asnumpy() for name in state.sources]
        return np.ascontiguousarray(sources[0] if state.transform is None else state.transform(*sources))


def to_torch(
    symbol: Symbol, arrays: Mapping[str, NDArray], inputs: Mapping[str, Lengths],
    types: Mapping[str, DType] | None = None, name: str = "Network", file: str = "",
) -> Source:  # fmt: skip
    """Return a network as a PyTorch module.

    Args:
        symbol: the network.
        arrays: its parameters and auxiliary states by name.
        inputs: the lengths of the inputs' axes.
        types: the dtypes of the inputs (default: float32).
        name: the name of the class.
        file: the name of the file of parameters, for the docstring.

    Raises:
        Unsupported: operators have no code; the message lists the nodes.
    """
    uses = [f"model = {name}()", f'model.load_state_dict(safetensors.torch.load_file("{file}"))'] if file else []
    return _source(symbol, arrays, inputs, types, name, _Target(torch.TABLE, torch.STYLE, _torch_imports, uses))


def to_gluon(
    symbol: Symbol, arrays: Mapping[str, NDArray], inputs: Mapping[str, Lengths],
    types: Mapping[str, DType] | None = None, name: str = "Network", file: str = "",
) -> Source:  # fmt: skip
    """Return a network as a Gluon block; the arguments are those of :func:`to_torch`.

    Raises:
        Unsupported: nodes have no code; the message lists them.
    """
    uses = [f"net = {name}()", f'net.load_parameters("{file}")'] if file else []
    return _source(symbol, arrays, inputs, types, name, _Target(gluon.TABLE, gluon.STYLE, _gluon_imports, uses))


class _Target(NamedTuple):
    table: Table
    style: Style
    imports: Callable[[str], list[str]]
    uses: list[str]


def _source(
    symbol: Symbol, arrays: Mapping[str, NDArray], inputs: Mapping[str, Lengths], types: Mapping[str, DType] | None,
    name: str, target: _Target,
) -> Source:  # fmt: skip
    types = types or dict.fromkeys(inputs, np.dtype(np.float32))
    network = read(symbol, arrays, inputs, types, target.table, name)
    body = Body(network.steps, list(network.inputs.values()), list(network.outputs.values()))
    blocks = find_blocks(body)
    printer = Printer(target.style, name, _doc(network.inputs, inputs, network.outputs), network.inputs)
    lines = printer.write(body, blocks, [step.name for step in network.steps])
    title = f'"""A network for {target.table.name}, written by flowmx.'
    doc = [title, "", *(f"    {each}" for each in target.uses), '"""', ""] if target.uses else [f'{title}"""', ""]
    text = "\n".join([*doc, *target.imports("\n".join(lines)), *lines, ""])
    state = dict(entries(body, body.steps, printer.members))
    return Source(name, text, state, arrays, list(network.inputs), list(network.outputs))


def _doc(names: Mapping[str, int], lengths: Mapping[str, Lengths], outputs: Mapping[str, int]) -> list[str]:
    sizes = ["(" + ", ".join(map(str, map(_length_text, each))) + ")" for each in lengths.values()]
    texts = ", ".join(f"{display_name(name)} {shape}" for name, shape in zip(names, sizes, strict=True))
    lines = [f"Inputs: {texts}.", f"Outputs: {', '.join(map(display_name, outputs))}."]
    joined = " ".join(lines)
    return [joined] if len(joined) <= _WIDTH else [part for line in lines for part in textwrap.wrap(line, _WIDTH)]


def _length_text(length: object) -> str:
    return str(length) if isinstance(length, int) else "n"


def _torch_imports(code: str) -> list[str]:
    """Return the imports and the helper functions of a module."""
    helpers = _helpers_of(code)
    whole = "\n".join([code, *helpers])
    imports = _numbers_of(code)
    imports += ["import torch"] if re.search(r"\btorch\.", whole) else []
    imports += ["import torch.nn.functional as F"] if re.search(r"\bF\.", whole) else []
    functions = [line for each in helpers for line in (*each.split("\n"), "", "")]
    return [*imports, "from torch import nn", "", "", *functions]


def _gluon_imports(code: str) -> list[str]:
    return [*_numbers_of(code), f"from flowmx.gluon import HybridBlock{', nn' if 'nn.' in code else ''}", "", ""]


def _numbers_of(code: str) -> list[str]:
    """Return the import of the numbers that are names."""
    names = [name for name in ("inf", "nan") if re.search(rf"\b{name}\b", code)]
    return [f"from math import {', '.join(names)}", ""] if names else []


def _helpers_of(code: str) -> list[str]:
    """Return the source of the functions that the code calls, and of those that they call."""
    sources = _helper_sources()
    needed: dict[str, None] = {}
    pending = [name for name in sources if re.search(rf"\b{name}\b", code)]
    while pending:
        name = pending.pop(0)
        if name not in needed:
            needed[name] = None
            pending += [other for other in sources if other != name and re.search(rf"\b{other}\b", sources[name])]
    return [sources[name] for name in sources if name in needed]


@cache
def _helper_sources() -> dict[str, str]:
    text = (Path(__file__).parent / "torch" / "helpers.py").read_text(encoding="utf-8")
    tree = ast.parse(text)
    nodes = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    lines = text.split("\n")
    starts = {node.name: min([node.lineno, *(each.lineno for each in node.decorator_list)]) for node in nodes}
    return {node.name: "\n".join(lines[starts[node.name] - 1 : node.end_lineno]) for node in nodes}
