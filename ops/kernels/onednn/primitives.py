"""Memory descriptors and primitives of oneDNN as Python objects, made once for each geometry and kept.

A :class:`Primitive` may be run by several threads at a time: each run takes a set of memory objects of its own
from the primitive's idle ones. Copies and scratch memory lie in a workspace, whose layout (:class:`Room`) is known
before anything runs: a bound graph plans it, elsewhere it belongs to the thread.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np

from flowmx.ops.kernels.onednn.library import (
    ANY_LAYOUT,
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
_KEPT_BYTES = 1 << 26
"""Bytes of a thread's workspace up to which it is kept."""
_LINE = 64
FLOAT32 = np.dtype(np.float32)


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


def dense(shape: Shape) -> Geometry:
    """How an array in C order lies."""
    return shape, c_strides(shape)


def is_channels_last(array: Geometry) -> bool:
    """Whether the channels (axis 1) lie beside each other, and not by being the only axis with elements."""
    shape, strides = array
    return len(shape) > 2 and strides == channels_last_strides(shape) and strides != c_strides(shape)


def dense_vectors(vectors: Sequence[Geometry]) -> bool:
    """Whether the elements of each of these vectors lie beside each other."""
    return all(strides == (1,) or shape == (1,) for shape, strides in vectors)


def pointer(array: Array) -> int:
    """The address of the first element."""
    return array.ctypes.data  # type: ignore[no-any-return]


def suits(*arrays: Array) -> bool:
    """Whether a kernel may have these: float32 and not empty."""
    return all(array.dtype == FLOAT32 and array.size > 0 for array in arrays)


def plainly(op: Any, run: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """The operator's plain forward, on copies in C order where an array lies otherwise."""
    results = [each if each.flags.c_contiguous else np.empty(each.shape, each.dtype) for each in outputs]
    count = len(inputs) - len(op.auxiliary)
    given = [np.ascontiguousarray(each) for each in inputs[:count]]
    op.forward(run, [*given, *inputs[count:]], results)
    for result, each in zip(results, outputs, strict=True):
        if result is not each:
            each[...] = result


Post = tuple[Any, ...]
"""What a primitive does to its output: ``("sum",)`` adds what is there, ``("eltwise", algorithm, alpha, beta)``
applies a function, ``("binary", algorithm, shape)`` combines it with another array."""


@lru_cache(_KEPT_PLANS)
def attributes(*posts: Post, scales: int | None = None) -> Handle:
    """The attributes of a primitive: scratch memory from us, and what is done to its output.

    Args:
        *posts: in the order in which they are done.
        scales: a mask of the axes along which the source is multiplied by numbers of their own.
    """
    lib = loaded()
    made = lib.create("primitive_attr_create")
    lib.call("primitive_attr_set_scratchpad_mode", made, 1)
    if scales is not None:
        lib.call("primitive_attr_set_scales_mask", made, int(Arg.SRC), scales)
    post_ops = lib.create("post_ops_create")
    for kind, *given in posts:
        if kind == "sum":
            lib.call("post_ops_append_sum", post_ops, ctypes.c_float(1), 0, 0)
        elif kind == "eltwise":
            algorithm, *numbers = given
            lib.call("post_ops_append_eltwise", post_ops, int(algorithm), *map(ctypes.c_float, numbers))
        else:
            lib.call("post_ops_append_binary", post_ops, int(given[0]), plain(given[1]).handle)
    lib.call("primitive_attr_set_post_ops", made, post_ops)
    lib.call("post_ops_destroy", post_ops)
    return made


class Room:
    """A workspace as it is laid out: pieces one after the other, each on a cache line of its own."""

    def __init__(self) -> None:
        self.nbytes = 0

    def take(self, nbytes: int) -> int:
        """The offset of a piece of so many bytes."""
        offset = self.nbytes
        self.nbytes += -(-nbytes // _LINE) * _LINE
        return offset


class Primitive:
    """A primitive and the descriptors of its arguments, in the order in which their addresses are given.

    The primitive itself, which takes the time, is made when it runs first.
    """

    def __init__(self, room: Room, desc: Handle, arguments: Mapping[int, Desc | Query]) -> None:
        """Make it from a primitive descriptor.

        Args:
            room: where its scratch memory is.
            desc: the primitive descriptor.
            arguments: for each argument its descriptor, or what to ask the primitive descriptor for.
        """
        lib = self._lib = loaded()
        self.desc = lib.own(self, "primitive_desc", desc)
        self.arguments = {
            argument: Desc(lib.described(desc, each)) if isinstance(each, Query) else each
            for argument, each in arguments.items()
        }
        scratchpad = Desc(lib.described(desc, Query.SCRATCHPAD))
        self._scratch = room.take(scratchpad.nbytes) if scratchpad.nbytes else None
        self._described = {**self.arguments, **({} if self._scratch is None else {int(Arg.SCRATCHPAD): scratchpad})}
        self._idle: list[BoundCall] = []

    def descriptor(self, argument: int) -> Desc:
        """How an argument is to lie in memory."""
        return self.arguments[argument]

    def implementation(self) -> str:
        """The name of the implementation that oneDNN chose."""
        return self._lib.implementation(self.desc)

    @cached_property
    def handle(self) -> Handle:
        """The primitive."""
        return self._lib.own(self, "primitive", self._lib.create("primitive_create", self.desc))

    def at(self, base: int, *addresses: int) -> Call:
        """A run on arguments at these addresses, in a workspace at ``base``."""
        return self, addresses if self._scratch is None else (*addresses, base + self._scratch)

    def call(self, addresses: tuple[int, ...]) -> BoundCall:
        """A call of its own, ready to run again and again."""
        made = BoundCall(self, self._described)
        made.point(addresses)
        return made

    def run(self, addresses: tuple[int, ...]) -> None:
        """Run it once."""
        try:
            call = self._idle.pop()
        except IndexError:
            call = BoundCall(self, self._described)
        if call.addresses != addresses:
            call.point(addresses)
        call()
        self._idle.append(call)


Call = tuple[Primitive, tuple[int, ...]]
"""A primitive, and where its arguments are."""


class BoundCall:
    """A primitive with memory objects of its own, which say where its arguments are.

    Attributes:
        of: the primitive.
        addresses: where they are.
    """

    def __init__(self, of: Primitive, arguments: Mapping[int, Desc]) -> None:
        self.of = of
        lib = self._lib = loaded()
        self._primitive = of.handle
        self._execute, self._stream = lib.execute, lib.stream
        self.memories = [
            lib.own(self, "memory", lib.create("memory_create", desc.handle, lib.engine, Handle(None)))
            for desc in arguments.values()
        ]
        self.count = len(self.memories)
        self.table = (ExecArg * self.count)(*map(ExecArg, arguments, self.memories))
        self.addresses: tuple[int, ...] = ()

    def point(self, addresses: tuple[int, ...]) -> None:
        """Say where the arguments are."""
        for memory, address in zip(self.memories, addresses, strict=True):
            self._lib.set_pointer(memory, address)
        self.addresses = addresses

    def __call__(self) -> None:
        status = self._execute(self._primitive, self._stream, self.count, self.table)
        if status:
            check("primitive_execute", status)


class Reorder(Primitive):
    """Copies from one layout to another."""

    def __init__(self, room: Room, source: Desc, target: Desc, scale: tuple[int, Desc] | None = None) -> None:
        """Make it.

        Args:
            room: where its scratch memory is.
            source: how the elements lie.
            target: how they are to lie.
            scale: a mask of axes, and numbers along them to multiply by, whose address is given last.
        """
        lib = loaded()
        made = lib.create(
            "reorder_primitive_desc_create", source.handle, lib.engine, target.handle, lib.engine,
            attributes() if scale is None else attributes(scales=scale[0]),
        )  # fmt: skip
        arguments: dict[int, Desc | Query] = {Arg.SRC: source, Arg.DST: target}
        if scale is not None:
            arguments[Arg.ATTR_SCALES | Arg.SRC] = scale[1]
        super().__init__(room, made, arguments)


class _Kept(threading.local):
    """A thread's workspace."""

    def __init__(self) -> None:
        self.memory: Array = np.empty(0, np.uint8)


_kept = _Kept()


def workspace(nbytes: int) -> Array:
    """Uninitialised bytes for one computation: the thread's own, or new ones where they are too many to be kept."""
    if _kept.memory.nbytes >= nbytes:
        return _kept.memory
    made = np.empty(nbytes, np.uint8)
    if nbytes <= _KEPT_BYTES:
        _kept.memory = made
    return made


def first_line(memory: Array) -> int:
    """The first address in an array that is aligned to a cache line."""
    return -(-pointer(memory) // _LINE) * _LINE


class Work:
    """What computes one operator for one geometry of its arrays: primitives, run one after the other.

    Attributes:
        room: the workspace that they need.
    """

    def __init__(self) -> None:
        self.room = Room()

    @property
    def nbytes(self) -> int:
        """The bytes of workspace, wherever it begins."""
        return self.room.nbytes + _LINE if self.room.nbytes else 0

    def calls(self, base: int, *addresses: int) -> Sequence[Call]:
        """What to run, for arrays at these addresses and a workspace at ``base``."""
        raise NotImplementedError

    def __call__(self, *addresses: int) -> None:
        """Run it now, in a workspace of the thread's."""
        memory = workspace(self.nbytes)
        for primitive, where in self.calls(first_line(memory), *addresses):
            primitive.run(where)


class Operand:
    """An argument that may lie otherwise in memory than the primitive wants it: then a copy stands in for it."""

    def __init__(
        self, room: Room, given: Desc, wanted: Desc, is_output: bool = False, scale: tuple[int, Desc] | None = None
    ) -> None:  # fmt: skip
        """Look whether a copy is needed.

        Args:
            room: where the copy would be.
            given: how it lies.
            wanted: how it should.
            is_output: the primitive writes it.
            scale: for an input that is multiplied on the way, as :class:`Reorder` takes it.
        """
        self._copy: Reorder | None = None
        if given != wanted or scale is not None:
            self._copy = Reorder(room, wanted, given) if is_output else Reorder(room, given, wanted, scale)
            self._offset = room.take(wanted.nbytes)

    @property
    def is_copied(self) -> bool:
        """Whether a copy stands in."""
        return self._copy is not None

    def at(self, base: int, address: int) -> int:
        """The address for the primitive."""
        return address if self._copy is None else base + self._offset

    def before(self, base: int, address: int, *scale: int) -> list[Call]:
        """What brings an input to where the primitive reads it."""
        return [] if self._copy is None else [self._copy.at(base, address, base + self._offset, *scale)]

    def after(self, base: int, address: int) -> list[Call]:
        """What brings an output to its place."""
        return [] if self._copy is None else [self._copy.at(base, base + self._offset, address)]


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
