"""The configuration of an optimizer: learning rate, schedule, multipliers; not its per-weight states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowmx.checkpoint.content import CheckpointError
from flowmx.optimizer import Optimizer, plain_data


def config(optimizer: Optimizer) -> dict[str, Any] | None:
    """Return the configuration for :func:`set_config`, or None if it is not plain data and cannot be saved."""
    try:
        return optimizer.get_config()
    except TypeError:
        return None


def set_config(optimizer: Optimizer, config: Mapping[str, Any] | None) -> None:
    """Restore the configuration of a freshly constructed optimizer.

    Raises:
        CheckpointError: it is another kind of optimizer.
    """
    if config is None:
        return
    kind = optimizer.get_config()["optimizer"]
    if kind != config["optimizer"]:
        raise CheckpointError(
            f"the checkpoint was written with the optimizer {config['optimizer']!r}, but this is {kind!r}: use the "
            "same optimizer, or another folder"
        )
    _set_schedule(optimizer, config["lr_scheduler"])
    vars(optimizer).update(config["attributes"])
    for key, table in config["tables"].items():
        for index, value in table:
            if key != "idx2name" and index in optimizer.param_dict:
                setattr(optimizer.param_dict[index], key, value)
            else:
                getattr(optimizer, key)[index] = value


def _set_schedule(optimizer: Optimizer, config: Mapping[str, object] | None) -> None:
    """Restore the state of a schedule in place, because the script may have a reference to it."""
    scheduler = optimizer.lr_scheduler
    if config is not None and scheduler is not None and type(scheduler).__name__ == config["name"]:
        vars(scheduler).update(plain_data.from_plain(config["state"]))
    else:
        optimizer.lr_scheduler = None if config is None else plain_data.schedule_from_plain(config)
