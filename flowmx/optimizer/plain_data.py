"""Arguments of optimizers and schedules as plain data: numbers, text, lists, dicts, which files and the wire take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowmx.lr_scheduler import LRScheduler

_SCHEDULE = "a schedule"
_ARRAY = "an array"


def of(value: Any, what: str) -> Any:
    """A value as plain data; schedules and NumPy's arrays in it as dicts that :func:`made` knows.

    Args:
        value: the value.
        what: its name in messages.

    Raises:
        TypeError: something in it is of another kind.
    """
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return {_ARRAY: of(value.tolist(), what), "dtype": str(value.dtype)}
    if isinstance(value, LRScheduler):
        return {_SCHEDULE: of_schedule(value, what)}
    if isinstance(value, Mapping):
        return {key: of(each, f"{what}, {key}") for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [of(each, what) for each in value]
    raise TypeError(f"{what}: {value!r} is no plain data (numbers, text, lists, dicts), so it can not be saved")


def made(value: Any) -> Any:
    """Restore a value from plain data.

    Raises:
        ValueError: it names a schedule that does not exist here.
    """
    if isinstance(value, list):
        return [made(each) for each in value]
    if not isinstance(value, dict):
        return value
    if _SCHEDULE in value:
        return schedule(value[_SCHEDULE])
    if _ARRAY in value:
        return np.array(value[_ARRAY], value["dtype"])
    return {key: made(each) for key, each in value.items()}


def of_schedule(given: Any, what: str) -> dict[str, Any]:
    """A schedule by its class's name, its arguments, and where it has come to.

    Raises:
        TypeError: it is of a class of its own, or something in it is no plain data.
    """
    if not isinstance(given, LRScheduler):
        raise TypeError(f"{what}: {given!r} is no mx.lr_scheduler.LRScheduler, so it can not be saved")
    state = {key: value for key, value in vars(given).items() if key != "given"}
    return {
        "name": type(given).__name__,
        "arguments": of(given.given, f"{what}, arguments"),
        "state": of(state, f"{what}, state"),
    }


def schedule(config: Mapping[str, Any]) -> LRScheduler:
    """The schedule that :func:`of_schedule` described.

    Raises:
        ValueError: its class does not exist here.
    """
    cls = LRScheduler.classes.get(config["name"])
    if cls is None:
        raise ValueError(
            f"the optimizer's schedule is a {config['name']}, which is not defined here: define or import that "
            "subclass of mx.lr_scheduler.LRScheduler first"
        )
    found: LRScheduler = cls.__new__(cls)  # a user's constructor may take other arguments, and the state holds all
    vars(found).update(made(config["state"]), given=made(config["arguments"]))
    return found
