"""States of optimizers, which servers keep by part, as one file for whole keys; and back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx.errors import KVStoreError
from flowmx.kvstore.shards import Shard
from flowmx.kvstore.worker.keys import KeyState
from flowmx.optimizer import states as states_file

__all__ = ["joined", "split"]


def joined(entries: Sequence[KeyState], parts: Mapping[Shard, bytes], optimizer: Mapping[str, Any] | None) -> bytes:
    """The content of a file with the states of whole keys.

    Args:
        entries: the keys.
        parts: the states of each part, as its server gave them; empty where there was no update.
        optimizer: the optimizer's configuration, to go into the file.
    """
    found: dict[Any, Any] = {}
    progress: dict[str, Any] = {"num_update": 0, "counts": []}
    for entry in entries:
        contents = [states_file.loads(parts[shard]) for shard in entry.shards if parts.get(shard)]
        if len(contents) == len(entry.shards):
            trees = [content.states[entry.key] for content in contents]
            found[entry.key] = _each(trees, functools.partial(_join, entry))
            progress = _later(progress, contents[0].progress)
    return states_file.dumps(found, progress, optimizer)


def split(entries: Sequence[KeyState], data: bytes) -> dict[Shard, bytes]:
    """The states of each part, out of a file with those of whole keys.

    Raises:
        StatesFormatError: it is something else, or damaged.
        KVStoreError: it is of other keys, or shapes.
    """
    content = states_file.loads(data)
    missing = [entry.key for entry in entries if entry.key not in content.states]
    if missing and content.states:
        known = list(content.states)[:5]
        raise KVStoreError(f"the states have no key {missing[0]!r}, only {known} ...: they are of another model")
    found: dict[Shard, bytes] = {}
    for entry in entries:
        for shard in entry.shards if entry.key in content.states else ():
            tree = _each([content.states[entry.key]], functools.partial(_cut, entry, shard))
            found[shard] = states_file.dumps({entry.key: tree}, content.progress, content.optimizer)
    return found


def _each(trees: Sequence[Any], of: Callable[[list[Any]], Any]) -> Any:
    """Trees of one form as one: `of` makes an array out of the arrays that stand in the same place."""
    first = trees[0]
    if isinstance(first, (tuple, list)):
        return type(first)(_each(list(found), of) for found in zip(*trees, strict=True))
    return of(list(trees)) if hasattr(first, "shape") else first


def _join(entry: KeyState, arrays: list[Any]) -> Any:
    flat = [np.asarray(each).reshape(-1) for each in arrays]
    sizes = [shard.stop - shard.start for shard in entry.shards]
    if [each.size for each in flat] != sizes:  # not one number for each element of the weight
        return nd.from_numpy(np.array(arrays[0]))
    return nd.from_numpy(np.concatenate(flat).reshape(entry.shape))


def _cut(entry: KeyState, shard: Shard, arrays: list[Any]) -> Any:
    whole = np.asarray(arrays[0])
    if whole.size != sum(each.stop - each.start for each in entry.shards):
        return nd.from_numpy(np.array(whole))
    return nd.from_numpy(whole.reshape(-1)[shard.start : shard.stop].reshape(entry.shape_of(shard)).copy())


def _later(progress: dict[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the optimizer's progress (update counts) of two parts."""
    counts = {device: dict(table) for device, table in progress.get("counts", [])}
    for device, table in other["counts"]:
        known = counts.setdefault(device, {})
        # A part that went on from a file counts those of the others as they were then.
        known.update((index, max(count, known.get(index, 0))) for index, count in dict(table).items())
    updates = max(progress.get("num_update", 0), other["num_update"])
    tables = [[device, list(table.items())] for device, table in counts.items()]
    return {**progress, **other, "num_update": updates, "counts": tables}
