"""Arguments of optimizers and schedules as plain data: numbers, text, lists, dicts, for files and the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowmx.lr_scheduler import LRScheduler

_SCHEDULE = "a schedule"
_ARRAY = "an array"


def to_plain(value: object, what: str) -> Any:
    """Convert a value to plain data; schedules and NumPy arrays become dicts that :func:`from_plain` recognizes.

    Args:
        value: the value.
        what: its name in messages.

    Raises:
        TypeError: a part of it cannot be converted.
    """
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return {_ARRAY: to_plain(value.tolist(), what), "dtype": str(value.dtype)}
    if isinstance(value, LRScheduler):
        return {_SCHEDULE: schedule_to_plain(value, what)}
    if isinstance(value, Mapping):
        return {key: to_plain(item, f"{what}, {key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item, what) for item in value]
    raise TypeError(f"{what}: {value!r} is not plain data (numbers, text, lists, dicts), so it cannot be saved")


def from_plain(value: object) -> Any:
    """Restore a value from plain data.

    Raises:
        ValueError: a schedule's class is not defined here.
    """
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _SCHEDULE in value:
        return schedule_from_plain(value[_SCHEDULE])
    if _ARRAY in value:
        return np.array(value[_ARRAY], value["dtype"])
    return {key: from_plain(item) for key, item in value.items()}


def schedule_to_plain(schedule: object, what: str) -> dict[str, object]:
    """Convert a schedule to the name of its class, its arguments, and its state.

    Raises:
        TypeError: it is not a subclass of LRScheduler, or a part of it cannot be converted.
    """
    if not isinstance(schedule, LRScheduler):
        raise TypeError(f"{what}: {schedule!r} is not an mx.lr_scheduler.LRScheduler, so it cannot be saved")
    state = {key: value for key, value in vars(schedule).items() if key != "init_arguments"}
    return {
        "name": type(schedule).__name__,
        "arguments": to_plain(schedule.init_arguments, f"{what}, arguments"),
        "state": to_plain(state, f"{what}, state"),
    }


def schedule_from_plain(config: Mapping[str, Any]) -> LRScheduler:
    """Restore the schedule that :func:`schedule_to_plain` converted.

    Raises:
        ValueError: its class is not defined here.
    """
    cls = LRScheduler.classes.get(config["name"])
    if cls is None:
        raise ValueError(
            f"the optimizer's schedule is a {config['name']}, which is not defined here: define or import that "
            "subclass of mx.lr_scheduler.LRScheduler first"
        )
    schedule: LRScheduler = cls.__new__(cls)  # not its constructor, whose arguments may differ; the state is complete
    vars(schedule).update(from_plain(config["state"]), init_arguments=from_plain(config["arguments"]))
    return schedule
