"""``Block.save`` and ``Block.load``: the parameters of a model and the nesting of its blocks."""

from __future__ import annotations

import json
import os
from typing import Any

from flowmx.gluon.base_block import Block
from flowmx.gluon.hybrid import HybridBlock
from flowmx.serialization.atomic import replace_file
from flowmx.serialization.reading import read_whole
from flowmx.symbol import var

__all__ = ["load", "save"]


def save(block: Block, prefix: str | os.PathLike[str]) -> None:
    """Write ``<prefix>-model.json``, the nesting of the blocks, and ``<prefix>-model.params``, for :meth:`load`.

    Args:
        block: the model.
        prefix: prefix of the file names.
    """
    description: dict[str, object] = {}
    _describe(block, [0], description)
    replace_file(f"{os.fspath(prefix)}-model.json", [json.dumps(description).encode()])
    block.save_parameters(f"{os.fspath(prefix)}-model.params")


def _describe(block: Block, count: list[int], into: dict[str, Any]) -> None:
    entry: dict[str, Any] = {"orig_name": block.name}
    into[f"{type(block).__name__.lower()}{count[0]}"] = entry
    if isinstance(block, HybridBlock):
        entry |= _graph_of(block)
    entry["children"] = {child.name: key for key, child in block._children.items()}
    for child in block._children.values():
        count[0] += 1
        _describe(child, count, entry)


def _graph_of(block: HybridBlock) -> dict[str, Any]:
    """Return the inputs and the graph of a hybridized block in MXNet's format."""
    for form, compiled in block._compiled.items():
        inputs, symbol, out_form, _ = compiled.traced
        return {
            "in_format": json.loads(form), "out_format": out_form, "inputs": [var(name).tojson() for name in inputs],
            "symbol": symbol.tojson(), "hybridized": True,
        }  # fmt: skip
    return {"hybridized": False}


def load(block: Block, prefix: str | os.PathLike[str]) -> None:
    """Load the files of :meth:`save` into a model of the same structure.

    Children get their saved keys, and hybridized blocks are hybridized again.

    Args:
        block: the model.
        prefix: prefix of the file names.

    Raises:
        ValueError: the file describes another structure.
    """
    description = json.loads(read_whole(f"{os.fspath(prefix)}-model.json"))
    _restore(block, [0], description)
    block.load_parameters(f"{os.fspath(prefix)}-model.params")


def _restore(block: Block, count: list[int], description: dict[str, Any]) -> None:
    label = f"{type(block).__name__.lower()}{count[0]}"
    entry = description.get(label)
    if entry is None or len(entry["children"]) != len(block._children):
        raise ValueError(
            f"load: the file describes {', '.join(description)} where the model has {label} with "
            f"{len(block._children)} children: load it into a model of the saved structure"
        )
    for child in block._children.values():
        count[0] += 1
        _restore(child, count, entry)
    block.restore_structure(entry["children"].values(), entry.get("hybridized", False))
