"""Symbols with parameters: the files that belong together, and what they contain."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flowmx import symbol as sym
from flowmx.ops.registry import operators
from flowmx.serialization import formats, symbol_json
from flowmx.serialization.symbol_json import GraphJSON
from flowmx.symbol import Symbol

__all__ = [
    "Checkpoint",
    "arrays_of",
    "checkpoint_of",
    "find_checkpoints",
    "load_symbol",
    "operators_of",
    "parameters_of",
    "unknown_operators",
    "writer_of",
]

_SUFFIX = "-symbol.json"


class Checkpoint(NamedTuple):
    """The files of a symbol and its parameters.

    Attributes:
        symbol: the file of the symbol.
        params: the file of the parameters, of the latest epoch; None without one.
        prefix: the prefix of both, if they are named as MXNet names them.
    """

    symbol: Path
    params: Path | None
    prefix: Path | None


def find_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the checkpoints of a folder; their files have the names of MXNet or of SageMaker."""
    return [checkpoint_of(symbol) for symbol in find_symbols(folder)]


def checkpoint_of(symbol: Path) -> Checkpoint:
    """Return the checkpoint of a symbol's file: its parameters are those of the same prefix, or the only ones there."""
    prefix = symbol.with_name(symbol.name.removesuffix(_SUFFIX)) if symbol.name.endswith(_SUFFIX) else None
    if prefix is not None:
        files = _with_epoch(symbol.parent, prefix.name) or [
            file for name in (f"{prefix.name}.params", prefix.name) if (file := symbol.with_name(name)).is_file()
        ]
        if files:
            return Checkpoint(symbol, files[-1], prefix)
    others = [file for file in (*symbol.parent.glob("*.params"), symbol.with_name("params")) if file.is_file()]
    alone = len(find_symbols(symbol.parent)) == 1
    return Checkpoint(symbol, max(others) if others and alone else None, prefix)


def find_symbols(folder: Path) -> list[Path]:
    """Return the files of symbols in a folder."""
    return sorted({*folder.glob(f"*{_SUFFIX}"), *folder.glob("symbol.json")})


def _with_epoch(folder: Path, prefix: str) -> list[Path]:
    pattern = re.compile(re.escape(prefix) + r"-\d{4}\.params")
    return sorted(file for file in folder.iterdir() if pattern.fullmatch(file.name))


def writer_of(graph: GraphJSON) -> str:
    """Return the name and version of the program that wrote a graph."""
    if "mxnet_version" not in graph.attrs:
        return "MXNet before 0.9"
    major, rest = divmod(graph.version, 10_000)
    return f"MXNet {major}.{rest // 100}.{rest % 100}"


def operators_of(graph: GraphJSON) -> Counter[str]:
    """Return how often each operator occurs in a graph and its subgraphs."""
    counts = Counter(node.op for node in graph.nodes if not node.is_variable)
    for node in graph.nodes:
        for subgraph in node.subgraphs:
            counts += operators_of(subgraph)
    return counts


def unknown_operators(graph: GraphJSON) -> list[str]:
    """Return the names of operators in a graph that MXNet 1.9.1 does not have."""
    return sorted(name for name in operators_of(graph) if operators.find(name) is None)


def arrays_of(path: Path) -> dict[str, Any]:
    """Return the arrays of a file by name, or by number if they have no names.

    Raises:
        FileFormatError: the file is damaged.
        OSError: it cannot be read.
    """
    arrays = formats.load(path, keep_sparse=True)
    return dict(arrays) if isinstance(arrays, Mapping) else {str(at): array for at, array in enumerate(arrays)}


def parameters_of(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays by the names of a symbol, without the prefixes of arguments and auxiliary states."""
    return {name.removeprefix("arg:").removeprefix("aux:"): array for name, array in arrays.items()}


def load_symbol(path: Path) -> tuple[Symbol, GraphJSON]:
    """Return a symbol, and its graph as the file has it.

    Raises:
        MXNetError: the file is damaged, or has an unknown operator.
        OSError: it cannot be read.
    """
    text = path.read_bytes()
    return sym.load_json(text), symbol_json.parse(text)
