"""MXNet's files of optimizer states (``prefix-0001.states``, ``trainer.save_states``): pickles of arrays.

What is read is plain data (:mod:`.pickled`): arrays, and the attributes of the optimizer and its schedule, where the
file holds them; of these an optimizer of the same name is made here. Nothing of the file is run.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx.lr_scheduler import LRScheduler
from flowmx.ndarray import NDArray
from flowmx.optimizer import pickled
from flowmx.optimizer.base import Optimizer, registry
from flowmx.optimizer.pickled import Made, Name
from flowmx.optimizer.states import StatesFormatError
from flowmx.serialization import params

_ONE = struct.pack("<QQQ", params.LIST_MAGIC, 0, 1)
"""The header of a .params file of one array; after the array comes the number of names, 0."""
_NO_NAMES = struct.pack("<Q", 0)
_ARRAY = Name("mxnet.ndarray.ndarray", "NDArray")
_ARRAYS = {"NDArray", "RowSparseNDArray", "CSRNDArray"}
_CALLED = {"warmup_final_lr": "base_lr", "power": "pwr", "float_stable_eps": "eps", "idx2name": "param_idx2name"}
"""Attributes that hold an argument of another name."""
_OURS = ("given", "param_dict", "aggregate_num", "_groups", "_lr_update")
"""Attributes that MXNet does not have or save, or that mean something of its own there."""
_AGGREGATED = {"SGD": 4, "ccSGD": 4, "LARS": 4, "LAMB": 45}
"""The number of weights that one operator of MXNet's optimizers updates (1 for those not listed)."""


def loads(data: bytes) -> tuple[dict[Any, Any], Optimizer | None]:
    """The states by index, with NumPy's arrays, and the optimizer where the file holds it.

    Raises:
        StatesFormatError: the file is damaged, or holds something else.
        ValueError: it names an optimizer or schedule that does not exist here.
    """
    try:
        return _loaded(data)
    except StatesFormatError:
        raise
    except RecursionError as error:
        raise StatesFormatError("the pickle is nested deeper than any file of optimizer states") from error


def _loaded(data: bytes) -> tuple[dict[Any, Any], Optimizer | None]:
    try:
        content = pickled.loads(data)
    except Exception as error:
        raise StatesFormatError(f"the optimizer states are a pickle, but none of MXNet's: {error}") from error
    optimizer = None
    if isinstance(content, tuple) and len(content) == 2:
        content, optimizer = content
    if not isinstance(content, dict):
        raise StatesFormatError(f"the pickle holds a {type(content).__name__}, expected a dict of optimizer states")
    reader = _Reader(len(data))
    states = {index: reader.read(state, f"the state of {index!r}") for index, state in content.items()}
    try:
        return states, None if optimizer is None else _optimizer(optimizer, reader)
    except (AttributeError, LookupError, TypeError) as error:  # an attribute is no more what it was
        raise StatesFormatError(f"the optimizer of the file can not be made: {error}") from error


def dumps(states: Mapping[Any, Any], optimizer: Optimizer | None) -> bytes:
    """A file that MXNet reads; arrays are anything with ``asnumpy``.

    Raises:
        TypeError: a state or an attribute of the optimizer is no plain data.
    """
    plain = {index: _plain(state) for index, state in states.items()}
    if optimizer is None:
        return pickled.dumps(plain)
    return pickled.dumps((plain, _described(optimizer)))


# -- reading -----------------------------------------------------------------------------------------------


class _Reader:
    """Turns what a pickle holds into arrays and plain data.

    A pickle may name a part again and again, so that a small file stands for more than any memory holds; so what is
    read is counted.

    Args:
        size: the length of the pickle in bytes.
    """

    def __init__(self, size: int) -> None:
        self._left = 8 * size + 4096

    def read(self, value: Any, what: str, wrap: Callable[[Any], Any] = np.asarray) -> Any:
        """A value with its arrays as NumPy's, or as something made of these."""
        self._count(1)
        if isinstance(value, Made):
            return wrap(self._array(value, what))
        if isinstance(value, dict):
            return {key: self.read(each, what, wrap) for key, each in value.items()}
        if isinstance(value, Name):
            raise StatesFormatError(f"{what} holds {value.module}.{value.name} itself, expected an NDArray of MXNet's")
        if isinstance(value, (tuple, list)):
            return type(value)([self.read(each, what, wrap) for each in value])
        return value

    def _array(self, made: Made, what: str) -> Any:
        module, name = made.of
        if not (module.startswith("mxnet.") and name in _ARRAYS and isinstance(made.state, dict)):
            raise StatesFormatError(
                f"{what} holds a {module}.{name}, expected an NDArray of MXNet's: nothing else is read from such a "
                "file, since it could be any code"
            )
        content = made.state.get("handle")
        if not isinstance(content, (bytes, bytearray)):
            raise StatesFormatError(f"{what} holds an array without content")
        self._count(len(content))
        try:
            (array,) = params.loads(_ONE + content + _NO_NAMES, source=what)
        except params.ParamsFormatError as error:
            raise StatesFormatError(f"the optimizer states are damaged: {error}") from error
        return array

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise StatesFormatError("the pickle names its parts more often than any file of optimizer states")


def _optimizer(made: Any, reader: _Reader) -> Optimizer:
    """An optimizer like the one that a file describes."""
    name, state = _attributes(made, "optimizer", reader)
    optimizer: Optimizer = _like(registry.find(name), state)
    scheduler = made.state.get("lr_scheduler")
    optimizer.lr_scheduler = None if scheduler is None else _schedule(scheduler, reader)
    counts = state.get("_all_index_update_counts") or {0: state.get("_index_update_count", {})}
    optimizer._all_index_update_counts = {0: {}} | counts
    optimizer._index_update_count = optimizer._all_index_update_counts[0]
    return optimizer


def _schedule(made: Any, reader: _Reader) -> LRScheduler:
    name, state = _attributes(made, "schedule", reader)
    cls = LRScheduler.classes.get(name)
    if cls is None:
        raise ValueError(
            f"the optimizer's schedule is a {name}, which is not defined here: define or import that subclass of "
            "mx.lr_scheduler.LRScheduler first"
        )
    schedule: LRScheduler = _like(cls, state)
    return schedule


def _attributes(made: Any, what: str, reader: _Reader) -> tuple[str, dict[str, Any]]:
    if not isinstance(made, Made) or not isinstance(made.state, dict):
        raise StatesFormatError(f"the pickle holds {made!r}, expected the {what} with its attributes")
    plain = {key: value for key, value in made.state.items() if key != "lr_scheduler"}
    return made.of.name, {key: reader.read(value, f"the {what}'s {key}", _wrapped) for key, value in plain.items()}


def _wrapped(array: Any) -> NDArray:
    return nd.array(array, dtype=array.dtype)


def _like(cls: Any, state: Mapping[str, Any]) -> Any:
    """An instance made with the arguments that the attributes hold; it then gets all of the attributes that it has."""
    given = {_CALLED.get(key, key): value for key, value in state.items() if key not in ("base_lr", "lr")}
    given["learning_rate"] = state.get("lr")
    known = {name for each in cls.__mro__ for name in _arguments(each)}
    made = cls(**{key: value for key, value in given.items() if key in known and value is not None})
    vars(made).update({key: value for key, value in state.items() if key in vars(made) and key not in _OURS})
    return made


def _arguments(cls: type) -> Iterator[str]:
    if "__init__" in vars(cls):
        yield from inspect.signature(vars(cls)["__init__"]).parameters


# -- writing -----------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """A value whose arrays are described as MXNet pickles them."""
    if isinstance(value, LRScheduler):
        return _described(value)
    if hasattr(value, "asnumpy"):
        content = params.dumps([value.asnumpy()])[len(_ONE) : -len(_NO_NAMES)]
        return Made(_ARRAY, (None,), {"handle": content})
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)([_plain(each) for each in value])
    return value


def _described(value: Optimizer | LRScheduler) -> Made:
    module = "mxnet.lr_scheduler" if isinstance(value, LRScheduler) else _module(type(value))
    state = {key: _plain(each) for key, each in vars(value).items() if key not in _OURS}
    if isinstance(value, Optimizer):
        state |= {"allow_np_array": False, "aggregate_num": _AGGREGATED.get(type(value).__name__, 0)}
    return Made(Name(module, type(value).__name__), (), state)


def _module(cls: type) -> str:
    """The module of an optimizer in MXNet."""
    return "mxnet.optimizer.contrib" if cls.__module__.endswith(".contrib") else "mxnet.optimizer.optimizer"
