"""Files of optimizer states: conversion between the states of shards, on servers, and those of whole keys."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx.errors import KVStoreError
from flowmx.kvstore.shards import Shard
from flowmx.kvstore.state_parts import join, merge_progress, merge_trees
from flowmx.kvstore.worker.keys import KeyState
from flowmx.optimizer import states_file

__all__ = ["join_states", "split_states"]


def join_states(
    entries: Sequence[KeyState], parts: Mapping[Shard, bytes], optimizer: Mapping[str, object] | None
) -> bytes:
    """Join the states of shards into the content of a file.

    Args:
        entries: the keys.
        parts: the states of each shard, from its server; empty where there was no update.
        optimizer: the optimizer's configuration, to be saved in the file.
    """
    states: dict[object, object] = {}
    progress: dict[str, object] = {"num_update": 0, "counts": []}
    for entry in entries:
        contents = [states_file.loads(parts[shard]) for shard in entry.shards if parts.get(shard)]
        if len(contents) == len(entry.shards):
            trees = [content.states[entry.key] for content in contents]
            states[entry.key] = merge_trees(trees, functools.partial(_join, entry))
            progress = merge_progress(progress, contents[0].progress)
    return states_file.dumps(states, progress, optimizer)


def split_states(entries: Sequence[KeyState], data: bytes | memoryview) -> dict[Shard, bytes]:
    """Split the content of a file into the states of each shard.

    Raises:
        StatesFormatError: the file has a different format, or is damaged.
        KVStoreError: the file has other keys.
    """
    content = states_file.loads(data)
    if content.states and not any(entry.key in content.states for entry in entries):
        # A key that was never updated has no states; if no key has any, the file is of another model.
        file_keys, store_keys = list(content.states)[:5], [entry.key for entry in entries][:5]
        raise KVStoreError(
            f"the states are of the keys {file_keys}, and this store has {store_keys}: they are of another model"
        )
    states: dict[Shard, bytes] = {}
    for entry in entries:
        for shard in entry.shards if entry.key in content.states else ():
            tree = merge_trees([content.states[entry.key]], functools.partial(_cut, entry, shard))
            states[shard] = states_file.dumps({entry.key: tree}, content.progress, content.optimizer)
    return states


def _join(entry: KeyState, arrays: Sequence[object]) -> Any:
    flat = join(arrays, [shard.stop - shard.start for shard in entry.shards])
    return nd.from_numpy(np.array(arrays[0]) if flat is None else flat.reshape(entry.shape))


def _cut(entry: KeyState, shard: Shard, arrays: Sequence[object]) -> Any:
    state = np.asarray(arrays[0])
    if state.size != sum(part.stop - part.start for part in entry.shards):
        return nd.from_numpy(np.array(state))
    return nd.from_numpy(state.reshape(-1)[shard.start : shard.stop].reshape(entry.shape_of(shard)).copy())
