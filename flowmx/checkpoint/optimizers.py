"""The state of an optimizer outside of its per-weight states: learning rate, schedule, multipliers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowmx.checkpoint.content import CheckpointError
from flowmx.optimizer import Optimizer, plain_data


def config(optimizer: Optimizer) -> dict[str, Any] | None:
    """The configuration that :func:`set_config` takes; None where it is no plain data: then the script's own stays."""
    try:
        return optimizer.get_config()
    except TypeError:
        return None


def set_config(optimizer: Optimizer, config: Mapping[str, Any] | None) -> None:
    """Let an optimizer that was made in the same way go on as it was.

    Raises:
        CheckpointError: it is another kind of optimizer.
    """
    if config is None:
        return
    own = optimizer.get_config()["optimizer"]
    if own != config["optimizer"]:
        raise CheckpointError(
            f"the checkpoint is of training with the optimizer {config['optimizer']!r}, and this is {own!r}: train "
            "with the same, or use another folder"
        )
    _set_schedule(optimizer, config["lr_scheduler"])
    vars(optimizer).update(config["attributes"])
    for key, table in config["tables"].items():
        for index, value in table:
            if key != "idx2name" and index in optimizer.param_dict:
                setattr(optimizer.param_dict[index], key, value)
            else:
                getattr(optimizer, key)[index] = value


def _set_schedule(optimizer: Optimizer, config: Mapping[str, Any] | None) -> None:
    """Restore the state of the script's own schedule in place, since the script may hold it."""
    own = optimizer.lr_scheduler
    if config is not None and own is not None and type(own).__name__ == config["name"]:
        vars(own).update(plain_data.made(config["state"]))
    else:
        optimizer.lr_scheduler = None if config is None else plain_data.schedule(config)
