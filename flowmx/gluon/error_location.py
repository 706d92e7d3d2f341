"""The location of an error in a model: the path of the block that failed and its inputs, as a note of the error."""

from __future__ import annotations

from itertools import pairwise
from traceback import walk_tb
from typing import TYPE_CHECKING

from flowmx.ndarray.array import NDArray
from flowmx.ops.registry.dtypes import name_of

if TYPE_CHECKING:
    from flowmx.gluon.base_block import Block

__all__ = ["add_location"]

_PREFIX = "flowmx: in block "
_MISSING_F = "hybrid_forward() takes "
_ADVICE_F = "flowmx: hybrid_forward(self, F, x, ...) is called with F, which is mx.nd or mx.sym, before the inputs"


def add_location(error: Exception) -> None:
    """Add a note to an error with the path of the block that raised it.

    ``Block.__call__`` of each enclosing block calls this and replaces the note. The blocks are read from the traceback,
    so nothing needs to be stored with the error. The path has the children's names, as in files of ``save_parameters``.
    """
    assert error.__traceback__ is not None
    call = error.__traceback__.tb_frame.f_code
    calls = [frame.f_locals for frame, _ in walk_tb(error.__traceback__) if frame.f_code is call]
    blocks: list[Block] = [variables["self"] for variables in calls]
    path = [_key(outer, child) for outer, child in pairwise(blocks)]
    where = f"{'.'.join(path)!r} of {type(blocks[0]).__name__}" if path else repr(blocks[0].name)
    innermost = repr(blocks[-1]).splitlines()[0].removesuffix("(")
    inputs = ", ".join(_describe(value) for value in calls[-1]["args"]) or "nothing"
    if isinstance(error, TypeError) and _MISSING_F in str(error) and _ADVICE_F not in getattr(error, "__notes__", ()):
        error.add_note(_ADVICE_F)
    message = blocks[-1]._explain(error, calls[-1]["args"])
    if message is not None:
        error.args = (message,)
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith(_PREFIX)]
    error.__notes__ = [*notes, f"{_PREFIX}{where}: {innermost}, given {inputs}"]


def _describe(value: object) -> str:
    if isinstance(value, NDArray):
        return f"{name_of(value.element_type)}{list(value.shape)}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_describe, value))}]"
    return type(value).__name__


def _key(outer: Block, child: Block) -> str:
    """Return the name of a block's child; the child's own name if it is not registered."""
    return next((key for key, block in outer._children.items() if block is child), child.name)
