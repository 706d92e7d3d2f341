"""Checkpoints (``mx.model``), in MXNet's files: ``prefix-symbol.json`` and ``prefix-0001.params``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from flowmx import ndarray as nd
from flowmx.devices import cpu
from flowmx.ndarray import NDArray
from flowmx.ndarray.creation import load_named

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
        prefix: of the files' names, ``<prefix>-symbol.json`` and ``<prefix>-<epoch, four digits>.params``.
        epoch: the number of epochs done.
        symbol: the symbol; None saves the parameters alone.
        arg_params: the parameters.
        aux_params: the auxiliary states.
        remove_amp_cast: leave casts of mixed precision out of the symbol.
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
    """The parameters and auxiliary states of a checkpoint; as :func:`load_checkpoint` without the symbol."""
    return read_params(f"{prefix}-{epoch:04d}.params")


def read_params(path: str) -> tuple[Params, Params]:
    """The parameters and auxiliary states in a file.

    Raises:
        ValueError: its arrays are not named ``arg:...`` and ``aux:...``.
        OSError: it can not be read.
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


def load_checkpoint(prefix: str, epoch: int) -> tuple[Any, Params, Params]:
    """Load what :func:`save_checkpoint` saved (MXNet's, too).

    Args:
        prefix: of the files' names.
        epoch: the number of epochs done.

    Returns:
        the symbol, the parameters and the auxiliary states.

    Raises:
        ValueError: the files hold something else.
        OSError: they can not be read.
    """
    from flowmx import symbol

    return symbol.load(f"{prefix}-symbol.json"), *load_params(prefix, epoch)


def __getattr__(name: str) -> Any:
    if name == "FeedForward":  # it stands on modules, which stand on this
        from flowmx.feedforward import FeedForward

        return FeedForward
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
