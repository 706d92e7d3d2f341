"""Primitives of oneDNN as Python objects, made once per geometry and cached.

Several threads may run a :class:`Primitive` at the same time: each run takes a separate set of memory objects from the
primitive's idle ones.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any, Protocol

from flowmx.ops.kernels.onednn.layouts import KEPT, Desc, library_or_raise, plain
from flowmx.ops.kernels.onednn.library import Arg, ExecArg, Handle, Query, check
from flowmx.ops.kernels.recording import Recording

LINE = 64


Post = tuple[Any, ...]
"""A post-operation of a primitive: ``("sum", factor, dtype)`` adds the output's old content (0: the output's dtype),
``("eltwise", algorithm, alpha, beta)`` applies a function, ``("binary", algorithm, shape, dtype)`` combines it with
another array."""
Scales = tuple[tuple[int, int], ...]
"""Arguments with scales, and for each a mask of the axes along which the scales vary."""


@lru_cache(KEPT)
def attributes(*posts: Post, scales: Scales = ()) -> Handle:
    """Return the attributes of a primitive: user-provided scratch memory, post-operations and scales.

    Args:
        *posts: the post-operations, in order.
        scales: the arguments with scales, which each run passes as ``ATTR_SCALES`` of the argument.
    """
    lib = library_or_raise()
    handle = lib.create("primitive_attr_create")
    lib.call("primitive_attr_set_scratchpad_mode", handle, 1)
    for argument, mask in scales:
        lib.call("primitive_attr_set_scales_mask", handle, argument, mask)
    post_ops = lib.create("post_ops_create")
    for kind, *arguments in posts:
        if kind == "sum":
            factor, dtype = arguments
            lib.call("post_ops_append_sum", post_ops, ctypes.c_float(factor), 0, int(dtype))
        elif kind == "eltwise":
            algorithm, *numbers = arguments
            lib.call("post_ops_append_eltwise", post_ops, int(algorithm), *map(ctypes.c_float, numbers))
        else:
            algorithm, shape, dtype = arguments
            lib.call("post_ops_append_binary", post_ops, int(algorithm), plain(shape, dtype).handle)
    lib.call("primitive_attr_set_post_ops", handle, post_ops)
    lib.call("post_ops_destroy", post_ops)
    return handle


class WorkspaceLayout:
    """The layout of a workspace: consecutive pieces, each aligned to a cache line."""

    def __init__(self) -> None:
        self.nbytes = 0

    def take(self, nbytes: int) -> int:
        """Reserve a piece of this many bytes and return its offset."""
        offset = self.nbytes
        self.nbytes += -(-nbytes // LINE) * LINE
        return offset


class Primitive:
    """A primitive and the descriptors of its arguments, in the order of their addresses.

    The primitive is created, which is slow, when it first runs.
    """

    def __init__(self, workspace: WorkspaceLayout, desc: Handle, arguments: Mapping[int, Desc | Query]) -> None:
        """Make a primitive from its descriptor.

        Args:
            workspace: the workspace layout, to which the scratch memory of the primitive is added.
            desc: the primitive descriptor.
            arguments: for each argument its descriptor, or the query for it.
        """
        lib = self._lib = library_or_raise()
        self.desc = lib.own(self, "primitive_desc", desc)
        self.arguments = {
            argument: Desc(lib.described(desc, each)) if isinstance(each, Query) else each
            for argument, each in arguments.items()
        }
        scratchpad = Desc(lib.described(desc, Query.SCRATCHPAD))
        self._scratch = workspace.take(scratchpad.nbytes) if scratchpad.nbytes else None
        self._described = {**self.arguments, **({} if self._scratch is None else {int(Arg.SCRATCHPAD): scratchpad})}
        self._idle: list[BoundCall] = []

    def descriptor(self, argument: int) -> Desc:
        """Return the layout in which the primitive reads or writes an argument."""
        return self.arguments[argument]

    def implementation(self) -> str:
        """Return the name of the implementation that oneDNN chose."""
        return self._lib.implementation(self.desc)

    @cached_property
    def handle(self) -> Handle:
        """The primitive."""
        return self._lib.own(self, "primitive", self._lib.create("primitive_create", self.desc))

    def at(self, base: int, *addresses: int) -> Call:
        """Return a call on arguments at these addresses, with a workspace at ``base``."""
        return self, addresses if self._scratch is None else (*addresses, base + self._scratch)

    def call(self, addresses: tuple[int, ...]) -> BoundCall:
        """Return a separate call that can run repeatedly."""
        call = BoundCall(self, self._described)
        call.point(addresses)
        return call

    def run(self, addresses: tuple[int, ...]) -> None:
        """Run once."""
        try:
            call = self._idle.pop()
        except IndexError:
            call = BoundCall(self, self._described)
        if call.addresses != addresses:
            call.point(addresses)
        call()
        self._idle.append(call)


class Runs(Protocol):
    """A primitive or its substitute, which runs on arguments at addresses."""

    def call(self, addresses: tuple[int, ...], /) -> Bound:
        """Return a separate call that can run repeatedly."""

    def run(self, addresses: tuple[int, ...], /) -> None:
        """Run once."""


class Bound(Protocol):
    """A call with arguments."""

    of: Any
    addresses: tuple[int, ...]

    def point(self, addresses: tuple[int, ...], /) -> None:
        """Set the addresses of the arguments."""

    def __call__(self) -> None: ...

    def record(self, recording: Recording, threads: int, /) -> None:
        """Add the native calls to a recording, unless running adds them."""


Call = tuple[Runs, tuple[int, ...]]
"""A primitive and the addresses of its arguments."""


class BoundCall:
    """A primitive with a separate set of memory objects, which hold the addresses of its arguments.

    Attributes:
        of: the primitive.
        addresses: the addresses of the arguments.
    """

    def __init__(self, of: Primitive, arguments: Mapping[int, Desc]) -> None:
        self.of = of
        lib = self._lib = library_or_raise()
        self.primitive = of.handle
        self._execute, self._stream = lib.execute, lib.stream
        self.memories = [
            lib.own(self, "memory", lib.create("memory_create", desc.handle, lib.engine, Handle(None)))
            for desc in arguments.values()
        ]
        self.count = len(self.memories)
        self.table = (ExecArg * self.count)(*map(ExecArg, arguments, self.memories))
        self._nowhere = self.addresses = (0,) * self.count

    def point(self, addresses: tuple[int, ...]) -> None:
        """Set the addresses of the arguments."""
        previous, self.addresses = self.addresses, self._nowhere  # an exception may interrupt the loop
        for memory, address, before in zip(self.memories, addresses, previous, strict=True):
            if address != before:
                self._lib.set_pointer(memory, address)
        self.addresses = addresses

    def record(self, recording: Recording, threads: int) -> None:
        """Add a call with separate memory objects to a recording."""
        recording.add_primitive(self.of.call(self.addresses), threads)

    def __call__(self) -> None:
        status = self._execute(self.primitive, self._stream, self.count, self.table)
        if status:
            check("primitive_execute", status)


class Reorder(Primitive):
    """A copy from one layout to another."""

    def __init__(
        self, workspace: WorkspaceLayout, source: Desc, target: Desc, scale: tuple[int, Desc] | None = None
    ) -> None:
        """Make a copy.

        Args:
            workspace: the workspace layout, to which the scratch memory of the copy is added.
            source: the layout of the source.
            target: the layout of the target.
            scale: a mask of axes and the descriptor of scales along them, whose address comes last.
        """
        lib = library_or_raise()
        desc = lib.create(
            "reorder_primitive_desc_create", source.handle, lib.engine, target.handle, lib.engine,
            attributes() if scale is None else attributes(scales=((int(Arg.SRC), scale[0]),)),
        )  # fmt: skip
        arguments: dict[int, Desc | Query] = {Arg.SRC: source, Arg.DST: target}
        if scale is not None:
            arguments[Arg.ATTR_SCALES | Arg.SRC] = scale[1]
        super().__init__(workspace, desc, arguments)
