"""``Block.save`` and ``Block.load``: the parameters of a model, and how its blocks nest."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from flowmx.gluon.base import Block
from flowmx.gluon.hybrid import HybridBlock
from flowmx.symbol import var

__all__ = ["load", "save"]


def save(block: Block, prefix: str | os.PathLike[str]) -> None:
    """Write ``<prefix>-model.json``, how the blocks nest, and ``<prefix>-model.params``, for :meth:`load`.

    Args:
        block: the model.
        prefix: the prefix of the files' names.
    """
    described: dict[str, Any] = {}
    _describe(block, [0], described)
    Path(f"{os.fspath(prefix)}-model.json").write_text(json.dumps(described), encoding="utf-8")
    block.save_parameters(f"{os.fspath(prefix)}-model.params")


def _describe(block: Block, count: list[int], into: dict[str, Any]) -> None:
    found: dict[str, Any] = {"orig_name": block.name}
    into[f"{type(block).__name__.lower()}{count[0]}"] = found
    if isinstance(block, HybridBlock):
        found |= _graph_of(block)
    found["children"] = {child.name: key for key, child in block._children.items()}
    for child in block._children.values():
        count[0] += 1
        _describe(child, count, found)


def _graph_of(block: HybridBlock) -> dict[str, Any]:
    """Inputs and graph of a hybridized block, as MXNet writes them."""
    for form, compiled in block._compiled.items():
        inputs, symbol, out_form, _ = compiled.traced
        return {
            "in_format": json.loads(form), "out_format": out_form, "inputs": [var(each).tojson() for each in inputs],
            "symbol": symbol.tojson(), "hybridized": True,
        }  # fmt: skip
    return {"hybridized": False}


def load(block: Block, prefix: str | os.PathLike[str]) -> None:
    """Read what :meth:`save` has written, into a block of the same making.

    Children get the keys that they had, blocks that were hybridized are so again.

    Args:
        block: the model.
        prefix: the prefix of the files' names.

    Raises:
        ValueError: the file was made of other blocks.
    """
    described = json.loads(Path(f"{os.fspath(prefix)}-model.json").read_text(encoding="utf-8"))
    _restore(block, [0], described)
    block.load_parameters(f"{os.fspath(prefix)}-model.params")


def _restore(block: Block, count: list[int], described: dict[str, Any]) -> None:
    label = f"{type(block).__name__.lower()}{count[0]}"
    found = described.get(label)
    if found is None or len(found["children"]) != len(block._children):
        raise ValueError(
            f"load: the file describes {', '.join(described)} where the model has {label} with "
            f"{len(block._children)} children: load it into a model that is made as the saved one was"
        )
    if isinstance(block, HybridBlock) and found["hybridized"]:
        block._active = True
    for child in block._children.values():
        count[0] += 1
        _restore(child, count, found)
    keys = found["children"].values()
    block._children = dict(zip(keys, block._children.values(), strict=True))
