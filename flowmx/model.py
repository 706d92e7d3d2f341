"""Checkpoints (``mx.model``), in MXNet's files: ``prefix-symbol.json`` and ``prefix-0001.params``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from flowmx import ndarray as nd
from flowmx.devices import cpu
from flowmx.ndarray import NDArray
from flowmx.ndarray.files import load_named

if TYPE_CHECKING:
    from flowmx.feedforward import FeedForward as FeedForward  # MXNet has it here
    from flowmx.symbol import Symbol

__all__ = ["BatchEndParam", "load_checkpoint", "load_params", "save_checkpoint"]

Params = dict[str, NDArray]


class BatchEndParam(NamedTuple):
    """The argument of a ``batch_end_callback``.

    Attributes:
        epoch: the epoch, from 0.
        nbatch: the batch in it, from 0.
        eval_metric: the metric, up to this batch.
        locals: the local variables of the loop.
    """

    epoch: int
    nbatch: int
    eval_metric: Any
    locals: dict[str, Any] | None


def save_checkpoint(
    prefix: str,
    epoch: int,
    symbol: Any,
    arg_params: Mapping[str, NDArray],
    aux_params: Mapping[str, NDArray],
    remove_amp_cast: bool = True,
) -> None:
    """Save a symbol and its parameters; blocks until they are on disk.

    Args:
        prefix: the prefix of the files' names, ``<prefix>-symbol.json`` and ``<prefix>-<epoch, four digits>.params``.
        epoch: the number of completed epochs.
        symbol: the symbol; None saves only the parameters.
        arg_params: the parameters.
        aux_params: the auxiliary states.
        remove_amp_cast: remove casts of mixed precision from the symbol.
    """
    if symbol is not None:
        symbol.save(f"{prefix}-symbol.json", remove_amp_cast=remove_amp_cast)
    save_params(f"{prefix}-{epoch:04d}.params", arg_params, aux_params)
    logging.info('Saved checkpoint to "%s"', f"{prefix}-{epoch:04d}.params")


def save_params(path: str, arg_params: Mapping[str, NDArray], aux_params: Mapping[str, NDArray]) -> None:
    """Save parameters and auxiliary states to one file."""
    named = {f"arg:{name}": array for name, array in arg_params.items()}
    named |= {f"aux:{name}": array for name, array in aux_params.items()}
    nd.save(path, {name: array.as_in_context(cpu()) for name, array in named.items()})


def load_params(prefix: str, epoch: int) -> tuple[Params, Params]:
    """Load the parameters and auxiliary states of a checkpoint, without its symbol; see :func:`load_checkpoint`."""
    return read_params(f"{prefix}-{epoch:04d}.params")


def read_params(path: str) -> tuple[Params, Params]:
    """Load the parameters and auxiliary states in a file.

    Raises:
        ValueError: its arrays are not named ``arg:...`` and ``aux:...``.
        OSError: the file cannot be read.
    """
    loaded = load_named(path)
    parts: dict[str, Params] = {"arg": {}, "aux": {}}
    if not loaded:
        logging.warning("Params file %r is empty", path)
        return parts["arg"], parts["aux"]
    for key, array in loaded.items():
        kind, _, name = key.partition(":")
        if kind not in parts:
            raise ValueError(
                f"{path} holds an array named {key!r}, expected a checkpoint's 'arg:<name>' or 'aux:<name>'; read "
                "other files with mx.nd.load"
            )
        parts[kind][name] = array
    return parts["arg"], parts["aux"]


def load_checkpoint(prefix: str, epoch: int) -> tuple[Symbol, Params, Params]:
    """Load the result of :func:`save_checkpoint` (also MXNet's).

    Args:
        prefix: the prefix of the files' names.
        epoch: the number of completed epochs.

    Returns:
        The symbol, the parameters and the auxiliary states.

    Raises:
        ValueError: a file has a different format.
        OSError: a file cannot be read.
    """
    from flowmx import symbol

    return symbol.load(f"{prefix}-symbol.json"), *load_params(prefix, epoch)
