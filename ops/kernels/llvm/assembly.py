"""Generate LLVM assembly: one function that works on vectors of a fixed number of lanes.

All functions have the same signature: their only argument is the address of the *words* of a call, which are its 64-bit
arguments. The first is a counter from which threads take their tasks, the second the number of tasks. Lengths, scalars
and arrays (as NumPy's objects) follow. Since threads take tasks from a counter, the same function serves any number of
threads, and the other threads do the tasks of one that starts late::

    code = Code("add", REAL)
    n, x, out = code.word(), code.array(), code.array()
    with code.tasks() as task:
        ...
    text = code.finish()

Only the text leaves this module: nothing here needs LLVM.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

DATA = object.__basicsize__
"""The offset of the data pointer in NumPy's array object: right after the object header."""

INDEX = "i64"


class Storage(NamedTuple):
    """An element type in memory that differs from its type in registers: LLVM's name, and the suffix of functions."""

    name: str
    suffix: str
    bits: int
    feature: str
    """The processor feature that it needs, as LLVM names it; empty if it needs none."""


class FloatType(NamedTuple):
    """An element type in registers: LLVM's name, the integer type of its size, the lanes of a vector.

    Elements with a 16-bit type (``storage``) are widened when they are loaded, and rounded when they are stored.
    """

    name: str
    integer: str
    suffix: str
    bits: int
    mantissa: int
    lanes: int
    storage: Storage | None = None

    @property
    def nbytes(self) -> int:
        """The size of an element in memory, in bytes."""
        return (self.storage or self).bits // 8

    @property
    def bias(self) -> int:
        """Return the exponent's bias."""
        return (1 << (self.bits - self.mantissa - 2)) - 1


# 64 bytes: one register on machines with registers of that size, several on others.
FLOAT = FloatType("float", "i32", "f32", 32, 23, 16)
DOUBLE = FloatType("double", "i64", "f64", 64, 52, 8)
HALF = FLOAT._replace(storage=Storage("half", "f16", 16, "f16c"))
BFLOAT = FLOAT._replace(storage=Storage("i16", "i16", 16, ""))
"""bfloat16: the upper half of a float."""


class Value(NamedTuple):
    """A value in a register: its type, and its name or literal."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type} {self.name}"

    @property
    def is_vector(self) -> bool:
        """Whether it is a vector."""
        return self.type.startswith("<")


def _lanes(first: int, count: int) -> str:
    """Return the mask of a shuffle that selects consecutive lanes."""
    return f"<{count} x i32> <{', '.join(f'i32 {first + at}' for at in range(count))}>"


class Code:
    """The text of one function while it is written.

    Args:
        real: the element type to compute in; arrays in memory have it too unless they state another.
        features: the processor's features, as LLVM names them.
    """

    def __init__(self, real: FloatType = FLOAT, features: frozenset[str] = frozenset()) -> None:
        self.real = real
        self.features = features
        self.lanes = real.lanes
        self.vector = f"<{self.lanes} x {real.name}>"
        self.integers = f"<{self.lanes} x {real.integer}>"
        self.mask = f"<{self.lanes} x i1>"
        self._declared: dict[str, None] = {}
        self._entry: list[str] = []
        self._body: list[str] = []
        self._names = 0
        self._words = 2
        self._streams = False
        self._reals: dict[str, FloatType] = {}
        """The element types of arrays, by the name of their address."""

    # -- text ------------------------------------------------------------------------------------------

    def _name(self) -> str:
        self._names += 1
        return f"%v{self._names}"

    def put(self, type: str, instruction: str) -> Value:
        """Add an instruction with a result."""
        name = self._name()
        self._body.append(f"  {name} = {instruction}")
        return Value(type, name)

    def do(self, instruction: str) -> None:
        """Add an instruction without a result."""
        self._body.append(f"  {instruction}")

    def call(self, name: str, type: str, *arguments: Value) -> Value:
        """Call an LLVM intrinsic."""
        self._declared[f"declare {type} @{name}({', '.join(a.type for a in arguments)})"] = None
        text = f"call {type} @{name}({', '.join(map(str, arguments))})"
        if type == "void":
            self.do(text)
            return Value(type, "")
        return self.put(type, text)

    def finish(self) -> str:
        """Return the whole text, with the function ``kernel``."""
        wide = ' "min-legal-vector-width"="512"' if "avx512f" in self.features else ""
        lines = [
            *self._declared,
            f"define void @kernel(ptr noalias %data) nounwind{wide} {{",
            "entry:", *self._entry, "  br label %start", "start:", *self._body, "  ret void", "}",
            *(["!0 = !{i32 1}"] if self._streams else ()),
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    # -- the words of the call -------------------------------------------------------------------------

    def _load_word(self, type: str) -> Value:
        place, name = self._name(), self._name()
        self._entry.append(f"  {place} = getelementptr i64, ptr %data, i64 {self._words}")
        self._entry.append(f"  {name} = load {type}, ptr {place}, align 8")
        self._words += 1
        return Value(type, name)

    def word(self) -> Value:
        """Return the next word, an int64."""
        return self._load_word(INDEX)

    def counter(self) -> Value:
        """Return the address of the next word, a counter of the threads."""
        place = self._name()
        self._entry.append(f"  {place} = getelementptr i64, ptr %data, i64 {self._words}")
        self._words += 1
        return Value("ptr", place)

    def number(self) -> Value:
        """Return the next word, a float64, in every lane of a vector."""
        wide = self._load_word("double")
        if self.real.name != "double":
            name = self._name()
            self._entry.append(f"  {name} = fptrunc double {wide.name} to {self.real.name}")
            wide = Value(self.real.name, name)
        first, every = self._name(), self._name()
        self._entry.append(f"  {first} = insertelement {self.vector} poison, {wide}, i64 0")
        zeros = f"<{self.lanes} x i32> zeroinitializer"
        self._entry.append(f"  {every} = shufflevector {self.vector} {first}, {self.vector} poison, {zeros}")
        return Value(self.vector, every)

    def array(self, real: FloatType | None = None) -> Value:
        """Return the address of the data of the next word, a NumPy array of these elements."""
        head = self._load_word("ptr")
        place, name = self._name(), self._name()
        self._entry.append(f"  {place} = getelementptr i8, ptr {head.name}, i64 {DATA}")
        self._entry.append(f"  {name} = load ptr, ptr {place}, align 8")
        if real is not None:
            assert real.name == self.real.name
            self._reals[name] = real
        return Value("ptr", name)

    def address(self) -> Value:
        """Return the next word, the address of elements."""
        return self._load_word("ptr")

    # -- control ---------------------------------------------------------------------------------------

    def _label(self) -> str:
        self._names += 1
        return f"b{self._names}"

    def local(self, value: Value) -> Value:
        """Make a variable with this first value; see :meth:`get` and :meth:`set`. LLVM keeps it in a register."""
        name = self._name()
        self._entry.append(f"  {name} = alloca {value.type}")
        variable = Value(value.type, name)
        self.set(variable, value)
        return variable

    def memory(self, count: int) -> Value:
        """Return the address of uninitialized memory for a number of elements, for one call on one thread."""
        name = self._name()
        self._entry.append(f"  {name} = alloca [{count} x {self.real.name}], align 64")
        return Value("ptr", name)

    def get(self, variable: Value) -> Value:
        """Return a variable's value."""
        return self.put(variable.type, f"load {variable.type}, ptr {variable.name}")

    def set(self, variable: Value, value: Value) -> None:
        """Set a variable."""
        self.do(f"store {value}, ptr {variable.name}")

    def task_count(self) -> Value:
        """Return the number of tasks."""
        place = self.put("ptr", "getelementptr i64, ptr %data, i64 1")
        return self.put(INDEX, f"load i64, ptr {place.name}, align 8")

    @contextmanager
    def tasks(self) -> Iterator[Value]:
        """Repeat for each task that this thread takes, until none is left; yield the task's number."""
        head, inside, done = self._label(), self._label(), self._label()
        count = self.task_count()
        self.do(f"br label %{head}")
        self._body.append(f"{head}:")
        task = self.put(INDEX, "atomicrmw add ptr %data, i64 1 monotonic, align 8")
        more = self.put("i1", f"icmp ult {task}, {count.name}")
        self.do(f"br i1 {more.name}, label %{inside}, label %{done}")
        self._body.append(f"{inside}:")
        yield task
        self.do(f"br label %{head}")
        self._body.append(f"{done}:")

    @contextmanager
    def loop(self, start: Value, stop: Value, step: int = 1, unless: Value | None = None) -> Iterator[Value]:
        """Repeat for start, start + step, ... below stop, or until a variable is true; yield the index."""
        head, inside, done = self._label(), self._label(), self._label()
        variable = self.local(start)
        self.do(f"br label %{head}")
        self._body.append(f"{head}:")
        index = self.get(variable)
        more = self.put("i1", f"icmp slt {index}, {stop.name}")
        if unless is not None:
            more = self.both(more, self.inverse(self.get(unless)))
        self.do(f"br i1 {more.name}, label %{inside}, label %{done}")
        self._body.append(f"{inside}:")
        yield index
        self.set(variable, self.plus(index, step))
        self.do(f"br label %{head}")
        self._body.append(f"{done}:")

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Emit a block that runs if the condition holds."""
        inside, done = self._label(), self._label()
        self.do(f"br i1 {condition.name}, label %{inside}, label %{done}")
        self._body.append(f"{inside}:")
        yield
        self.do(f"br label %{done}")
        self._body.append(f"{done}:")

    def strips(self, start: Value, stop: Value, body: Callable[[Value, Value | None], None]) -> None:
        """Loop from start to stop in vectors: ``body(index, mask)``. Only an incomplete vector has a mask."""
        self.unrolled(start, stop, lambda index, mask, slot: body(index, mask), 1)

    def until(self, done: Value, start: Value, stop: Value, body: Callable[[Value, Value | None], None]) -> None:
        """Loop like :meth:`strips`, until the body sets a variable to true."""
        length = self.put(INDEX, f"sub nsw {stop}, {start.name}")
        whole = self.plus(start, self.put(INDEX, f"and {length}, {-self.lanes}"))
        with self.loop(start, whole, self.lanes, unless=done) as index:
            body(index, None)
        rest = self.put("i1", f"icmp slt {whole}, {stop.name}")
        with self.when(self.both(rest, self.inverse(self.get(done)))):
            body(whole, self.first_lanes(self.minus(stop, whole)))

    def unrolled(self, start: Value, stop: Value, body: Callable[[Value, Value | None, int], None], slots: int) -> None:
        """Loop like :meth:`strips`, several vectors a round: ``body(index, mask, slot)``, one slot for each."""

        def round_of(indices: Sequence[Value], mask: Value | None) -> None:
            for slot, index in enumerate(indices):
                body(index, mask, slot)

        self.side_by_side(start, stop, round_of, slots)

    def side_by_side(
        self, start: Value, stop: Value, body: Callable[[Sequence[Value], Value | None], None], count: int
    ) -> None:  # fmt: skip
        """Loop like :meth:`strips`, ``count`` vectors (a power of 2) a round: ``body(indices, mask)``.

        With a count of 0, every round is one vector with a mask: the body is emitted once, which halves the code.
        """
        if not count:
            with self.loop(start, stop, self.lanes) as index:
                body([index], self.first_lanes(self.minus(stop, index)))
            return
        for width in (count, 1) if count > 1 else (1,):
            step = width * self.lanes
            length = self.put(INDEX, f"sub nsw {stop}, {start.name}")
            whole = self.plus(start, self.put(INDEX, f"and {length}, {-step}"))
            with self.loop(start, whole, step) as index:
                body([self.plus(index, at * self.lanes) if at else index for at in range(width)], None)
            start = whole
        with self.when(self.put("i1", f"icmp slt {start}, {stop.name}")):
            rest = self.put(INDEX, f"sub nsw {stop}, {start.name}")
            body([start], self.first_lanes(rest))

    # -- integers --------------------------------------------------------------------------------------

    @staticmethod
    def index(value: int) -> Value:
        """Return an integer constant."""
        return Value(INDEX, str(value))

    def plus(self, a: Value, b: Value | int) -> Value:
        """Add integers."""
        return self.put(INDEX, f"add nsw {a}, {b.name if isinstance(b, Value) else b}")

    def times(self, a: Value, b: Value | int) -> Value:
        """Multiply integers."""
        return self.put(INDEX, f"mul nsw {a}, {b.name if isinstance(b, Value) else b}")

    def minus(self, a: Value, b: Value) -> Value:
        """Subtract integers."""
        return self.put(INDEX, f"sub nsw {a}, {b.name}")

    def divided(self, a: Value, b: Value) -> Value:
        """Divide non-negative integers, rounding down."""
        return self.put(INDEX, f"udiv {a}, {b.name}")

    def least(self, a: Value, b: Value) -> Value:
        """Return the smaller integer."""
        return self.call("llvm.smin.i64", INDEX, a, b)

    # -- memory ----------------------------------------------------------------------------------------

    def at(self, address: Value, index: Value, type: str = "") -> Value:
        """Return the address of an element."""
        return self.put("ptr", f"getelementptr {type or self._storage_of(address)[0]}, {address}, {index}")

    def load(self, address: Value, index: Value, mask: Value | None = None, other: Value | None = None) -> Value:
        """Load a vector that starts at an element; lanes outside the mask are ``other`` (default 0)."""
        real, (element, suffix) = self._real(address), self._storage_of(address)
        place, size, stored = self.at(address, index), real.nbytes, f"<{self.lanes} x {element}>"
        if mask is None:
            return self._widen(self.put(stored, f"load {stored}, {place}, align {size}"), real)
        name = f"llvm.masked.load.v{self.lanes}{suffix}.p0"
        fill = Value(stored, "zeroinitializer") if other is None or real.storage else other
        vector = self._widen(self.call(name, stored, place, Value("i32", str(size)), mask, fill), real)
        return vector if fill is other or other is None else self.choose(mask, vector, other)

    def store(
        self, value: Value, address: Value, index: Value, mask: Value | None = None, streams: bool = False
    ) -> None:  # fmt: skip
        """Store a vector that starts at an element.

        ``streams`` bypasses the caches; the address must then be the start of a cache line.
        """
        real = self._real(address)
        place, size, value = self.at(address, index), real.nbytes, self._narrow(value, real)
        if mask is None and streams:
            self._streams = True
            self.do(f"store {value}, {place}, align {self.lanes * size}, !nontemporal !0")
        elif mask is None:
            self.do(f"store {value}, {place}, align {size}")
        else:
            name = f"llvm.masked.store.v{self.lanes}{self._storage_of(address)[1]}.p0"
            self.call(name, "void", value, place, Value("i32", str(size)), mask)

    def gather(self, address: Value, start: Value, step: Value, mask: Value | None = None) -> Value:
        """Load a vector of elements ``step`` apart; lanes outside the mask are 0."""
        real, (element, suffix) = self._real(address), self._storage_of(address)
        stored, places = f"<{self.lanes} x {element}>", self._places(address, start, step)
        arguments = (places, Value("i32", str(real.nbytes)), self._or_all(mask), Value(stored, "zeroinitializer"))
        return self._widen(
            self.call(f"llvm.masked.gather.v{self.lanes}{suffix}.v{self.lanes}p0", stored, *arguments), real
        )

    def scatter(self, value: Value, address: Value, start: Value, step: Value, mask: Value | None = None) -> None:
        """Store a vector's elements ``step`` apart."""
        real = self._real(address)
        arguments = (self._narrow(value, real), self._places(address, start, step), Value("i32", str(real.nbytes)))
        name = f"llvm.masked.scatter.v{self.lanes}{self._storage_of(address)[1]}.v{self.lanes}p0"
        self.call(name, "void", *arguments, self._or_all(mask))

    def _places(self, address: Value, start: Value, step: Value) -> Value:
        """Return the addresses of elements ``step`` apart, one in each lane."""
        wide = f"<{self.lanes} x {INDEX}>"
        numbers = ", ".join(f"{INDEX} {lane}" for lane in range(self.lanes))
        offsets = self.put(wide, f"mul <{self.lanes} x {INDEX}> <{numbers}>, {self.spread(step).name}")
        at = self.put(wide, f"add {offsets}, {self.spread(start).name}")
        return self.put(f"<{self.lanes} x ptr>", f"getelementptr {self._storage_of(address)[0]}, {address}, {at}")

    def _or_all(self, mask: Value | None) -> Value:
        return self._every(self.mask, "i1 true") if mask is None else mask

    def _real(self, address: Value) -> FloatType:
        """Return the element type of an array."""
        return self._reals.get(address.name, self.real)

    def _storage_of(self, address: Value) -> tuple[str, str]:
        """Return the element type of an array in memory: LLVM's name, and the suffix of functions."""
        real = self._real(address)
        memory = real.storage or real
        return memory.name, memory.suffix

    def _widen(self, value: Value, real: FloatType) -> Value:
        """Convert a loaded value, a vector or one element, to its type in registers."""
        if real.storage is None:
            return value
        wide, integers = (self.vector, self.integers) if value.is_vector else (real.name, real.integer)
        if real.storage.name == "half":
            return self.put(wide, f"fpext {value} to {wide}")
        bits = self.put(integers, f"zext {value} to {integers}")
        return self.put(wide, f"bitcast {self._shift('shl', bits)} to {wide}")

    def _narrow(self, value: Value, real: FloatType) -> Value:
        """Round a value to its type in memory before it is stored: to nearest, ties to even."""
        if real.storage is None:
            return value
        stored = f"<{self.lanes} x {real.storage.name}>" if value.is_vector else real.storage.name
        if real.storage.name == "half":
            return self.put(stored, f"fptrunc {value} to {stored}")
        integers = self.integers if value.is_vector else real.integer
        bits = self.put(integers, f"bitcast {value} to {integers}")
        high = self._shift("lshr", bits)
        odd = self.put(integers, f"and {high}, {self._whole(1, integers)}")
        half = self.put(integers, f"add {odd}, {self._whole(0x7FFF, integers)}")
        rounded = self._shift("lshr", self.put(integers, f"add {bits}, {half.name}"))
        quiet = self.put(integers, f"or {high}, {self._whole(0x40, integers)}")
        is_nan = self.put(self.mask if value.is_vector else "i1", f"fcmp uno {value}, {value.name}")
        return self.put(stored, f"trunc {self.choose(is_nan, quiet, rounded)} to {stored}")

    def _shift(self, direction: str, bits: Value) -> Value:
        return self.put(bits.type, f"{direction} {bits}, {self._whole(16, bits.type)}")

    def _whole(self, value: int, type: str) -> str:
        """Return an integer constant of a type, as text without the type."""
        return self.whole(value).name if type == self.integers else str(value)

    def prefetch(self, address: Value, start: Value, count: Value) -> None:
        """Prefetch the elements from ``start``: at most ``count`` of them, and at most 8 vectors."""
        with self.loop(self.index(0), self.least(count, self.index(8 * self.lanes)), self.lanes) as at:
            place = self.at(address, self.plus(start, at))
            flags = [Value("i32", number) for number in ("0", "3", "1")]
            self.call("llvm.prefetch.p0", "void", place, *flags)

    def load_one(self, address: Value, index: Value) -> Value:
        """Load one element."""
        stored = self._storage_of(address)[0]
        return self._widen(self.put(stored, f"load {stored}, {self.at(address, index)}"), self._real(address))

    def load_index(self, address: Value, index: Value) -> Value:
        """Load one element of an int64 array."""
        return self.put(INDEX, f"load {INDEX}, {self.at(address, index, INDEX)}")

    def load_short_index(self, address: Value, index: Value) -> Value:
        """Load one element of an int32 array, as an index."""
        element = self.put("i32", f"load i32, {self.at(address, index, 'i32')}")
        return self.put(INDEX, f"sext {element} to {INDEX}")

    def store_one(self, value: Value, address: Value, index: Value) -> None:
        """Store one element."""
        self.do(f"store {self._narrow(value, self._real(address))}, {self.at(address, index)}")

    # -- numbers ---------------------------------------------------------------------------------------

    def constant(self, value: float) -> Value:
        """Return a number in every lane."""
        if self.real.name == "float":
            try:
                value = struct.unpack("<f", struct.pack("<f", value))[0]
            except OverflowError:
                value = float("inf") if value > 0 else float("-inf")
        literal = "0x" + struct.pack(">d", value).hex().upper()
        return self._every(self.vector, f"{self.real.name} {literal}")

    def whole(self, value: int) -> Value:
        """Return an integer constant, of the elements' size, in every lane."""
        return self._every(self.integers, f"{self.real.integer} {value}")

    def _every(self, type: str, one: str) -> Value:
        return Value(type, f"splat ({one})")

    def spread(self, one: Value) -> Value:
        """Return a vector with one number in every lane."""
        vector = f"<{self.lanes} x {one.type}>"
        first = self.put(vector, f"insertelement {vector} poison, {one}, i64 0")
        zeros = f"<{self.lanes} x i32> zeroinitializer"
        return self.put(vector, f"shufflevector {first}, {vector} poison, {zeros}")

    def first(self, vector: Value) -> Value:
        """Return the first lane's number."""
        return self.put(self.real.name, f"extractelement {vector}, i64 0")

    def first_lanes(self, count: Value) -> Value:
        """Return the mask of the first ``count`` lanes."""
        numbers = ", ".join(f"i64 {lane}" for lane in range(self.lanes))
        return self.put(self.mask, f"icmp sgt {self.spread(count)}, <{numbers}>")

    def choose(self, condition: Value, yes: Value, no: Value) -> Value:
        """Select, lane by lane, one of two vectors."""
        return self.put(yes.type, f"select {condition}, {yes}, {no}")

    def compare(self, name: str, a: Value, b: Value) -> Value:
        """Compare numbers by LLVM's fcmp condition: ``olt`` for <, ``oeq`` for =, all false for NaN."""
        return self.put(self.mask if a.is_vector else "i1", f"fcmp {name} {a}, {b.name}")

    def both(self, a: Value, b: Value) -> Value:
        """Return whether both conditions hold."""
        return self.put(a.type, f"and {a}, {b.name}")

    def inverse(self, condition: Value) -> Value:
        """Negate a condition."""
        return self.put("i1", f"xor {condition}, true")

    def any(self, mask: Value) -> Value:
        """Return whether the condition holds in any lane."""
        return self.call(f"llvm.vector.reduce.or.v{self.lanes}i1", "i1", mask)

    def binary(self, name: str, a: Value, b: Value) -> Value:
        """Apply one of fadd, fsub, fmul and fdiv, with its own rounding (never fused)."""
        return self.put(a.type, f"{name} {a}, {b.name}")

    def intrinsic(self, name: str, *operands: Value) -> Value:
        """Call one of LLVM's vector functions, such as ``llvm.fabs``."""
        kind = f"v{self.lanes}{self.real.suffix}" if operands[0].is_vector else self.real.suffix
        return self.call(f"{name}.{kind}", operands[0].type, *operands)

    def total(self, value: Value) -> Value:
        """Return the sum of a vector's lanes.

        The two halves of a vector are added until one lane is left. The order is explicit: that of LLVM's own sum
        depends on the processor, and on the optimization.
        """
        name, lanes = self.real.name, self.lanes
        while lanes > 1:
            lanes //= 2
            lower, upper = (
                self.put(f"<{lanes} x {name}>", f"shufflevector {value}, {value.type} poison, {_lanes(first, lanes)}")
                for first in (0, lanes)
            )
            value = self.binary("fadd", lower, upper)
        return self.put(name, f"extractelement {value}, i64 0")

    def largest(self, value: Value) -> Value:
        """Return the largest of a vector's lanes, ignoring NaN."""
        return self.call(f"llvm.vector.reduce.fmax.v{self.lanes}{self.real.suffix}", self.real.name, value)
