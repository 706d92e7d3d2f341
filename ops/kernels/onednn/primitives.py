"""Memory descriptors and primitives of oneDNN as Python objects, made once for each geometry and kept.

A :class:`Primitive` may be run by several threads at a time: each run takes a set of memory objects of its own
from the primitive's idle ones. Scratch memory belongs to the thread.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from flowmx.ops.kernels.onednn.library import (
    ANY_LAYOUT,
    Alg,
    Arg,
    Dims,
    DType,
    ExecArg,
    Handle,
    Library,
    OneDNNError,
    Query,
    Unsupported,
    check,
    library,
)

Array = Any
Shape = tuple[int, ...]

_KEPT_PLANS = 2048
_FLOAT32 = np.dtype(np.float32)


def loaded() -> Library:
    """The library.

    Raises:
        Unsupported: it is missing.
    """
    found = library()
    if found is None:
        raise Unsupported("oneDNN is not installed")
    return found


class Desc:
    """A memory descriptor: a shape and how its elements lie in memory."""

    def __init__(self, handle: Handle) -> None:
        lib = loaded()
        self.handle = lib.own(self, "memory_desc", handle)
        self.nbytes = lib.size(handle)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Desc) and (other is self or loaded().equal(self.handle, other.handle))

    __hash__ = None  # type: ignore[assignment]


@lru_cache(_KEPT_PLANS)
def strided(shape: Shape, strides: Shape, dtype: DType = DType.F32) -> Desc:
    """Elements at these strides (counted in elements)."""
    rank = len(shape)
    return Desc(loaded().create("memory_desc_create_with_strides", rank, Dims(*shape), int(dtype), Dims(*strides)))


def plain(shape: Shape, dtype: DType = DType.F32) -> Desc:
    """Elements in C order."""
    return strided(shape, c_strides(shape), dtype)


def channels_last(shape: Shape) -> Desc:
    """(batch, channels, *size) with the channels beside each other in memory."""
    return strided(shape, channels_last_strides(shape))


@lru_cache(_KEPT_PLANS)
def any_layout(shape: Shape) -> Desc:
    """Elements as the primitive likes them best."""
    return Desc(loaded().create("memory_desc_create_with_tag", len(shape), Dims(*shape), int(DType.F32), ANY_LAYOUT))


def c_strides(shape: Shape) -> Shape:
    """Strides of C order, in elements."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(1, length)
    return tuple(reversed(strides))


def channels_last_strides(shape: Shape) -> Shape:
    """Strides of channels-last order, in elements."""
    moved = c_strides((shape[0], *shape[2:], shape[1]))
    return (moved[0], moved[-1], *moved[1:-1])


Geometry = tuple[Shape, Shape]
"""Shape and strides (in elements) of an array."""


def geometry(array: Array) -> Geometry:
    """How a float32 array lies in memory."""
    return array.shape, tuple([stride >> 2 for stride in array.strides])


def is_channels_last(array: Geometry) -> bool:
    """Whether the channels (axis 1) lie beside each other, and not by being the only axis with elements."""
    shape, strides = array
    return len(shape) > 2 and strides == channels_last_strides(shape) and strides != c_strides(shape)


def pointer(array: Array) -> int:
    """The address of the first element."""
    return array.ctypes.data  # type: ignore[no-any-return]


def suits(*arrays: Array) -> bool:
    """Whether a kernel may have these: float32 and not empty."""
    return all(array.dtype == _FLOAT32 and array.size > 0 for array in arrays)


def plainly(op: Any, run: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """The operator's plain forward, on copies in C order where an array lies otherwise."""
    results = [each if each.flags.c_contiguous else np.empty(each.shape, each.dtype) for each in outputs]
    count = len(inputs) - len(op.auxiliary)
    given = [np.ascontiguousarray(each) for each in inputs[:count]]
    op.forward(run, [*given, *inputs[count:]], results)
    for result, each in zip(results, outputs, strict=True):
        if result is not each:
            each[...] = result


@lru_cache
def attributes(relu: bool = False) -> Handle:
    """The attributes of a primitive: scratch memory from us, and a ReLU on the output where wanted."""
    lib = loaded()
    made = lib.create("primitive_attr_create")
    lib.call("primitive_attr_set_scratchpad_mode", made, 1)
    if relu:
        post = lib.create("post_ops_create")
        lib.call("post_ops_append_eltwise", post, int(Alg.ELTWISE_RELU), ctypes.c_float(0), ctypes.c_float(0))
        lib.call("primitive_attr_set_post_ops", made, post)
        lib.call("post_ops_destroy", post)
    return made


class Primitive:
    """A primitive and the descriptors of its arguments, in the order in which their addresses are given."""

    def __init__(self, desc: Handle, arguments: Mapping[int, Desc | Query]) -> None:
        """Make it from a primitive descriptor.

        Args:
            desc: the primitive descriptor.
            arguments: for each argument its descriptor, or what to ask the primitive descriptor for.
        """
        lib = self._lib = loaded()
        self.desc = lib.own(self, "primitive_desc", desc)
        self.arguments = {
            argument: Desc(lib.described(desc, each)) if isinstance(each, Query) else each
            for argument, each in arguments.items()
        }
        self._scratch = Desc(lib.described(desc, Query.SCRATCHPAD))
        self._primitive = lib.own(self, "primitive", lib.create("primitive_create", desc))
        self._idle: list[_Call] = []
        self._execute, self._stream = lib.execute, lib.stream

    def descriptor(self, argument: int) -> Desc:
        """How an argument is to lie in memory."""
        return self.arguments[argument]

    def implementation(self) -> str:
        """The name of the implementation that oneDNN chose."""
        return self._lib.implementation(self.desc)

    def __call__(self, *addresses: int) -> None:
        """Run it on arguments at these addresses."""
        try:
            call = self._idle.pop()
        except IndexError:
            call = _Call(self._lib, self.arguments, self._scratch if self._scratch.nbytes else None)
        if self._scratch.nbytes:
            addresses = (*addresses, scratch("primitive", self._scratch.nbytes))
        if call.addresses != addresses:
            call.point(self._lib, addresses)
        check("primitive_execute", self._execute(self._primitive, self._stream, call.count, call.table))
        self._idle.append(call)


class _Call:
    """The memory objects of one run."""

    def __init__(self, lib: Library, arguments: Mapping[int, Desc], room: Desc | None) -> None:
        handles = [(argument, desc.handle) for argument, desc in arguments.items()]
        if room is not None:
            handles.append((int(Arg.SCRATCHPAD), room.handle))
        self.memories = [
            lib.own(self, "memory", lib.create("memory_create", desc, lib.engine, Handle(None))) for _, desc in handles
        ]
        self.table = (ExecArg * len(handles))(
            *(ExecArg(argument, memory) for (argument, _), memory in zip(handles, self.memories, strict=True))
        )
        self.count = len(handles)
        self.addresses: tuple[int, ...] = ()

    def point(self, lib: Library, addresses: tuple[int, ...]) -> None:
        """Say where the arguments are."""
        for memory, address in zip(self.memories, addresses, strict=True):
            lib.set_pointer(memory, address)
        self.addresses = addresses


class Reorder(Primitive):
    """Copies from one layout to another."""

    def __init__(self, source: Desc, target: Desc) -> None:
        lib = loaded()
        made = lib.create(
            "reorder_primitive_desc_create", source.handle, lib.engine, target.handle, lib.engine, attributes()
        )
        super().__init__(made, {Arg.SRC: source, Arg.DST: target})


class _Scratch(threading.local):
    """A thread's buffers, each with the address in it that is aligned to a cache line."""

    def __init__(self) -> None:
        self.buffers: dict[str, tuple[Array, int]] = {}


_scratch = _Scratch()


def scratch(slot: str, nbytes: int) -> int:
    """The address of uninitialised memory, the thread's own, valid until the slot is asked for again."""
    known = _scratch.buffers.get(slot)
    if known is None or known[0].nbytes < nbytes + 64:
        memory = np.empty(nbytes + 64, np.uint8)
        known = _scratch.buffers[slot] = (memory, (pointer(memory) + 63) & ~63)
    return known[1]


class Operand:
    """An argument that may lie otherwise in memory than the primitive wants it: then a copy stands in for it."""

    def __init__(self, slot: str, given: Desc, wanted: Desc, is_output: bool = False) -> None:
        self._slot = slot
        self._nbytes = wanted.nbytes
        self._copy: Reorder | None = None
        if given != wanted:
            self._copy = Reorder(wanted, given) if is_output else Reorder(given, wanted)

    @property
    def is_copied(self) -> bool:
        """Whether a copy stands in."""
        return self._copy is not None

    def before(self, address: int) -> int:
        """The address for the primitive, of an input with its content."""
        if self._copy is None:
            return address
        into = scratch(self._slot, self._nbytes)
        self._copy(address, into)
        return into

    def room(self, address: int) -> int:
        """The address for the primitive, of an output to be written."""
        return address if self._copy is None else scratch(self._slot, self._nbytes)

    def after(self, address: int) -> None:
        """Bring what was written to its place."""
        if self._copy is not None:
            self._copy(scratch(self._slot, self._nbytes), address)


Plan = TypeVar("Plan")
_plans: dict[Any, Any] = {}
_making = threading.Lock()


def plan(kind: Callable[..., Plan], *key: Any) -> Plan | None:
    """``kind(*key)``, made once and kept; None where oneDNN has no implementation of it."""
    whole = (kind, *key)
    try:
        return _plans[whole]  # type: ignore[no-any-return]
    except KeyError:
        pass
    with _making:
        if whole not in _plans:
            if len(_plans) >= _KEPT_PLANS:
                _plans.clear()
            try:
                _plans[whole] = kind(*key)
            except OneDNNError:
                _plans[whole] = None
        return _plans[whole]  # type: ignore[no-any-return]


def dims(values: Sequence[int]) -> Any:
    """Numbers as ``dnnl_dims_t``."""
    return Dims(*values)
