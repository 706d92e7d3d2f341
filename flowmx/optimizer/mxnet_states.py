"""MXNet's files of optimizer states (``prefix-0001.states``, ``trainer.save_states``): pickles of arrays.

The pickles are read as plain data (:mod:`.plain_pickle`): arrays, and the attributes of the optimizer and its schedule,
if the file has them, to make an optimizer of the same name. No code in the file runs.
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
from flowmx.optimizer.base_optimizer import Optimizer, registry
from flowmx.optimizer.states_file import StatesFormatError
from flowmx.serialization import params, plain_pickle
from flowmx.serialization.plain_pickle import Name, ObjectRecord

_ONE_ARRAY = struct.pack("<QQQ", params.LIST_MAGIC, 0, 1)
"""The header of a .params file of one array; the number of names, 0, follows the array."""
_NO_NAMES = struct.pack("<Q", 0)
_ARRAY = Name("mxnet.ndarray.ndarray", "NDArray")
_ARRAYS = {"NDArray", "RowSparseNDArray", "CSRNDArray"}
_RENAMED = {"warmup_final_lr": "base_lr", "power": "pwr", "float_stable_eps": "eps", "idx2name": "param_idx2name"}
"""Constructor arguments whose attribute has another name, by attribute."""
_UNSHARED = ("init_arguments", "param_dict", "aggregate_num", "_groups", "_last_steps", "_lr_update")
"""Attributes that MXNet lacks, does not save, or uses differently."""
_AGGREGATE_NUMS = {"SGD": 4, "ccSGD": 4, "LARS": 4, "LAMB": 45}
"""The number of weights that an operator of MXNet's optimizers updates (1 for other optimizers)."""


def loads(data: bytes) -> tuple[dict[Any, Any], Optimizer | None]:
    """Return the states by index, with NumPy arrays, and the optimizer if the file has it.

    Raises:
        StatesFormatError: the file is damaged, or has a different format.
        ValueError: the optimizer's or the schedule's class is not defined here.
    """
    try:
        return _load(data)
    except StatesFormatError:
        raise
    except RecursionError as error:
        raise StatesFormatError("the pickle is nested deeper than any file of optimizer states") from error


def _load(data: bytes) -> tuple[dict[Any, Any], Optimizer | None]:
    try:
        content = plain_pickle.loads(data)
    except Exception as error:  # a damaged pickle may fail in any way
        raise StatesFormatError(f"the optimizer states are a pickle that MXNet did not write: {error}") from error
    optimizer = None
    if isinstance(content, tuple) and len(content) == 2:
        content, optimizer = content
    if not isinstance(content, dict):
        raise StatesFormatError(f"the pickle holds a {type(content).__name__}, expected a dict of optimizer states")
    reader = _Reader(len(data))
    states = {index: reader.read(state, f"the state of {index!r}") for index, state in content.items()}
    try:
        return states, None if optimizer is None else _optimizer(optimizer, reader)
    except (AttributeError, LookupError, TypeError) as error:  # an attribute has an unexpected value
        raise StatesFormatError(f"the optimizer of the file cannot be restored: {error}") from error


def dumps(states: Mapping[Any, Any], optimizer: Optimizer | None) -> bytes:
    """Return the bytes of a file that MXNet reads; arrays are objects with ``asnumpy``.

    Raises:
        TypeError: a state or an attribute of the optimizer cannot be saved.
    """
    plain = {index: _plain(state) for index, state in states.items()}
    if optimizer is None:
        return plain_pickle.dumps(plain)
    return plain_pickle.dumps((plain, _describe(optimizer)))


# -- reading -----------------------------------------------------------------------------------------------


class _Reader:
    """Converts the content of a pickle to arrays and plain data.

    A pickle may refer to a part repeatedly, so a small file could expand beyond the memory. The reader therefore limits
    the amount of converted data.

    Args:
        size: the length of the pickle in bytes.
    """

    def __init__(self, size: int) -> None:
        self._remaining = 8 * size + 4096

    def read(self, value: object, label: str, wrap: Callable[[Any], Any] = np.asarray) -> Any:
        """Convert a value; convert its arrays to NumPy arrays, and pass these to `wrap`."""
        self._count(1)
        if isinstance(value, ObjectRecord):
            return wrap(self._array(value, label))
        if isinstance(value, dict):
            return {key: self.read(item, label, wrap) for key, item in value.items()}
        if isinstance(value, Name):
            raise StatesFormatError(f"{label} holds the name {value.module}.{value.name}, expected an MXNet NDArray")
        if isinstance(value, (tuple, list)):
            return type(value)([self.read(item, label, wrap) for item in value])
        return value

    def _array(self, instance: ObjectRecord, label: str) -> Any:
        module, name = instance.cls
        if not (module.startswith("mxnet.") and name in _ARRAYS and isinstance(instance.state, dict)):
            raise StatesFormatError(
                f"{label} holds a {module}.{name}, expected an MXNet NDArray: other classes are not read, because "
                "they could run any code"
            )
        content = instance.state.get("handle")
        if not isinstance(content, (bytes, bytearray)):
            raise StatesFormatError(f"{label} holds an array without content")
        self._count(len(content))
        try:
            (array,) = params.loads(_ONE_ARRAY + content + _NO_NAMES, source=label)
        except params.ParamsFormatError as error:
            raise StatesFormatError(f"the optimizer states are damaged: {error}") from error
        return array

    def _count(self, size: int) -> None:
        self._remaining -= size
        if self._remaining < 0:
            raise StatesFormatError("the pickle repeats its parts more often than any file of optimizer states")


def _optimizer(instance: Any, reader: _Reader) -> Optimizer:
    """Return an optimizer like the one that a file describes."""
    name, state = _attributes(instance, "optimizer", reader)
    optimizer: Optimizer = _create_instance(registry.find(name), state)
    scheduler = instance.state.get("lr_scheduler")
    optimizer.lr_scheduler = None if scheduler is None else _schedule(scheduler, reader)
    counts = state.get("_all_index_update_counts") or {0: state.get("_index_update_count", {})}
    optimizer._all_index_update_counts = {0: {}} | counts
    optimizer._index_update_count = optimizer._all_index_update_counts[0]
    return optimizer


def _schedule(instance: object, reader: _Reader) -> LRScheduler:
    name, state = _attributes(instance, "schedule", reader)
    cls = LRScheduler.classes.get(name)
    if cls is None:
        raise ValueError(
            f"the optimizer's schedule is a {name}, which is not defined here: define or import that subclass of "
            "mx.lr_scheduler.LRScheduler first"
        )
    schedule: LRScheduler = _create_instance(cls, state)
    return schedule


def _attributes(instance: object, label: str, reader: _Reader) -> tuple[str, dict[str, Any]]:
    if not isinstance(instance, ObjectRecord) or not isinstance(instance.state, dict):
        raise StatesFormatError(
            f"the pickle holds a {type(instance).__name__}, expected the {label} with its attributes"
        )
    plain = {key: value for key, value in instance.state.items() if key != "lr_scheduler"}
    return instance.cls.name, {
        key: reader.read(value, f"the {label}'s {key}", _to_ndarray) for key, value in plain.items()
    }


def _to_ndarray(array: NDArray) -> NDArray:
    return nd.array(array, dtype=array.dtype)


def _create_instance(cls: Any, state: Mapping[str, object]) -> Any:
    """Create an instance with the constructor arguments among the attributes in ``state``, then set the others."""
    arguments = {_RENAMED.get(key, key): value for key, value in state.items() if key not in ("base_lr", "lr")}
    arguments["learning_rate"] = state.get("lr")
    accepted = {name for base in cls.__mro__ for name in _arguments(base)}
    instance = cls(**{key: value for key, value in arguments.items() if key in accepted and value is not None})
    vars(instance).update(
        {key: value for key, value in state.items() if key in vars(instance) and key not in _UNSHARED}
    )
    return instance


def _arguments(cls: type) -> Iterator[str]:
    if "__init__" in vars(cls):
        yield from inspect.signature(vars(cls)["__init__"]).parameters


# -- writing -----------------------------------------------------------------------------------------------


def _plain(value: object) -> Any:
    """Convert a value for pickling; arrays become descriptions as in MXNet's pickles."""
    if isinstance(value, LRScheduler):
        return _describe(value)
    if hasattr(value, "asnumpy"):
        content = params.dumps([value.asnumpy()])[len(_ONE_ARRAY) : -len(_NO_NAMES)]
        return ObjectRecord(_ARRAY, (None,), {"handle": content})
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)([_plain(item) for item in value])
    return value


def _describe(value: Optimizer | LRScheduler) -> ObjectRecord:
    module = "mxnet.lr_scheduler" if isinstance(value, LRScheduler) else _module(type(value))
    state = {key: _plain(item) for key, item in vars(value).items() if key not in _UNSHARED}
    if isinstance(value, Optimizer):
        state |= {"allow_np_array": False, "aggregate_num": _AGGREGATE_NUMS.get(type(value).__name__, 0)}
    return ObjectRecord(Name(module, type(value).__name__), (), state)


def _module(cls: type) -> str:
    """Return the module of an optimizer in MXNet."""
    return "mxnet.optimizer.contrib" if cls.__module__.endswith(".contrib") else "mxnet.optimizer.optimizer"
