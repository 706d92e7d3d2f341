"""Key spaces: the keys of each Trainer or Module of a process are separate.

On the wire a key of a numbered space is a string: ``"/2/weight"`` is the key ``"weight"`` of space 2, and ``"/2#0"`` is
its key 0. Keys of the plain space, used by ``mx.kv.create``, are sent unchanged; a key that begins with ``/`` gets
another ``/`` in front.
"""

from __future__ import annotations

import re
from functools import lru_cache

from flowmx.kvstore.shards import Key

__all__ = ["PLAIN", "format_key", "local_key", "qualify", "space_of", "suffix"]

PLAIN = ""
"""The space of the keys that a user initializes in the store itself."""

_FORM = re.compile(r"/(\w*)(?:/(.*)|#(-?\d+))", re.DOTALL)


def qualify(space: str, key: Key) -> Key:
    """Return the wire form of a key of a space."""
    if isinstance(key, int):
        return f"/{space}#{key}" if space else key
    return f"/{space}/{key}" if space or key.startswith("/") else key


def space_of(key: Key) -> str:
    """Return the space of a key in wire form."""
    return _parse(key)[0] if isinstance(key, str) else PLAIN


def local_key(key: Key) -> Key:
    """Return the name within its space of a key in wire form."""
    return _parse(key)[1] if isinstance(key, str) else key


def suffix(space: str) -> str:
    """Return a suffix for names that must differ between spaces, such as a barrier's."""
    return f" of space {space}" if space else ""


def format_key(key: Key) -> str:
    """Format a key in wire form for messages."""
    space, name = (space_of(key), local_key(key))
    return f"{name!r} of Trainer or Module {space}" if space else repr(name)


@lru_cache(1 << 16)
def _parse(key: str) -> tuple[str, Key]:
    if not key.startswith("/") or (match := _FORM.fullmatch(key)) is None:
        return PLAIN, key
    space, name, number = match.groups()
    return space, name if number is None else int(number)
