"""Primitives of oneDNN as Python objects, made once for each geometry and kept.

A :class:`Primitive` may be run by several threads at a time: each run takes a set of memory objects of its own
from the primitive's idle ones.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any, Protocol

from flowmx.ops.kernels.onednn.layouts import KEPT, Desc, loaded, plain
from flowmx.ops.kernels.onednn.library import Arg, ExecArg, Handle, Query, check

LINE = 64


Post = tuple[Any, ...]
"""A post-operation of a primitive: ``("sum", factor, dtype)`` adds what is there (of the output's dtype where that is
0), ``("eltwise", algorithm, alpha, beta)`` applies a function, ``("binary", algorithm, shape, dtype)`` combines it with
another array."""
Scales = tuple[tuple[int, int], ...]
"""Arguments that are multiplied by numbers of their own, and for each a mask of the axes along which these differ."""


@lru_cache(KEPT)
def attributes(*posts: Post, scales: Scales = ()) -> Handle:
    """The attributes of a primitive: scratch memory from us, and what is done to its output.

    Args:
        *posts: in the order in which they are done.
        scales: what is multiplied by numbers that are given when it runs, as ``ATTR_SCALES`` of each argument.
    """
    lib = loaded()
    made = lib.create("primitive_attr_create")
    lib.call("primitive_attr_set_scratchpad_mode", made, 1)
    for argument, mask in scales:
        lib.call("primitive_attr_set_scales_mask", made, argument, mask)
    post_ops = lib.create("post_ops_create")
    for kind, *given in posts:
        if kind == "sum":
            factor, dtype = given
            lib.call("post_ops_append_sum", post_ops, ctypes.c_float(factor), 0, int(dtype))
        elif kind == "eltwise":
            algorithm, *numbers = given
            lib.call("post_ops_append_eltwise", post_ops, int(algorithm), *map(ctypes.c_float, numbers))
        else:
            algorithm, shape, dtype = given
            lib.call("post_ops_append_binary", post_ops, int(algorithm), plain(shape, dtype).handle)
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
        self.nbytes += -(-nbytes // LINE) * LINE
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
        """The layout in which the primitive wants an argument."""
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


class Runs(Protocol):
    """A primitive, or its substitute: runs on arguments at addresses."""

    def call(self, addresses: tuple[int, ...], /) -> Bound:
        """A call of its own, ready to run again and again."""

    def run(self, addresses: tuple[int, ...], /) -> None:
        """Run it once."""


class Bound(Protocol):
    """A call with arguments."""

    of: Any
    addresses: tuple[int, ...]

    def point(self, addresses: tuple[int, ...], /) -> None:
        """Say where the arguments are."""

    def __call__(self) -> None: ...


Call = tuple[Runs, tuple[int, ...]]
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
        self._nowhere = self.addresses = (0,) * self.count

    def point(self, addresses: tuple[int, ...]) -> None:
        """Say where the arguments are."""
        known, self.addresses = self.addresses, self._nowhere  # this may be broken off in the middle
        for memory, address, before in zip(self.memories, addresses, known, strict=True):
            if address != before:
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
            attributes() if scale is None else attributes(scales=((int(Arg.SRC), scale[0]),)),
        )  # fmt: skip
        arguments: dict[int, Desc | Query] = {Arg.SRC: source, Arg.DST: target}
        if scale is not None:
            arguments[Arg.ATTR_SCALES | Arg.SRC] = scale[1]
        super().__init__(room, made, arguments)
