"""Places of errors in a model: the path of the block that failed, and what was given to it, as a note of the error."""

from __future__ import annotations

from itertools import pairwise
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from flowmx.ndarray.array import NDArray
from flowmx.ops.registry.dtypes import name_of

if TYPE_CHECKING:
    from flowmx.gluon.base import Block

__all__ = ["add_place"]

_PREFIX = "flowmx: in block "


def add_place(error: Exception) -> None:
    """Note on an error in which block it came up. For the ``__call__`` of blocks, each of which catches it on its way.

    The traceback tells which of them it has passed, so that nothing is kept on an error that is raised again. The path
    consists of the names by which blocks hold each other, as ``save_parameters`` writes them.
    """
    assert error.__traceback__ is not None
    call = error.__traceback__.tb_frame.f_code
    calls = [frame.f_locals for frame, _ in walk_tb(error.__traceback__) if frame.f_code is call]
    blocks: list[Block] = [each["self"] for each in calls]
    path = [_key(outer, child) for outer, child in pairwise(blocks)]
    where = f"{'.'.join(path)!r} of {type(blocks[0]).__name__}" if path else repr(blocks[0].name)
    failed = repr(blocks[-1]).splitlines()[0].removesuffix("(")
    given = ", ".join(_described(each) for each in calls[-1]["args"]) or "nothing"
    kept = [each for each in getattr(error, "__notes__", ()) if not each.startswith(_PREFIX)]
    error.__notes__ = [*kept, f"{_PREFIX}{where}: {failed}, given {given}"]


def _described(value: Any) -> str:
    if isinstance(value, NDArray):
        return f"{name_of(value._dtype)}{list(value.shape)}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_described, value))}]"
    return type(value).__name__


def _key(outer: Block, child: Block) -> str:
    """The name by which a block holds another one; the other's own where it does not."""
    return next((key for key, each in outer._children.items() if each is child), child.name)
