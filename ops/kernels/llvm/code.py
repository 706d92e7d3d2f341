"""Writing LLVM's assembly: one function that works on vectors of a fixed number of lanes.

Every function has the same shape. It gets one address, of the words of a call: a counter from which threads
take their tasks, the number of tasks, then whatever the function itself reads (lengths, numbers, and arrays,
which come as NumPy's objects). Since tasks are taken from a counter, the same function serves any number of
threads, and a thread that comes late leaves its share to the others::

    code = Code("add", REAL)
    n, x, out = code.word(), code.array(), code.array()
    with code.tasks() as task:
        ...
    text = code.finish()

The text is all that leaves this module: nothing here needs LLVM.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

DATA = object.__basicsize__
"""The offset of the data pointer in NumPy's array object: right after the object's head."""

INDEX = "i64"


class Kept(NamedTuple):
    """An element type in memory, where it is another than in registers: LLVM's name, and the suffix of functions."""

    name: str
    suffix: str
    bits: int
    feature: str
    """The processor feature that it needs, as LLVM names it; empty where none is."""


class Real(NamedTuple):
    """An element type in registers: LLVM's name, the integer type of its size, the lanes of a vector.

    Elements that are ``kept`` in 16 bits are widened as they are loaded, and rounded as they are stored.
    """

    name: str
    integer: str
    suffix: str
    bits: int
    mantissa: int
    lanes: int
    kept: Kept | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of an element in memory."""
        return (self.kept or self).bits // 8

    @property
    def bias(self) -> int:
        """The exponent's bias."""
        return (1 << (self.bits - self.mantissa - 2)) - 1


# 64 bytes: one register where the machine has them that long, several where not.
FLOAT = Real("float", "i32", "f32", 32, 23, 16)
DOUBLE = Real("double", "i64", "f64", 64, 52, 8)
HALF = FLOAT._replace(kept=Kept("half", "f16", 16, "f16c"))
BFLOAT = FLOAT._replace(kept=Kept("i16", "i16", 16, ""))
"""bfloat16: the upper half of a float."""


class Value(NamedTuple):
    """A value in a register: its type, and its name or literal."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type} {self.name}"

    @property
    def is_vector(self) -> bool:
        """True for a vector, False for a scalar."""
        return self.type.startswith("<")


class Code:
    """The text of one function, as it grows.

    Args:
        real: the element type it computes in, and of arrays in memory that are not said to be of another one.
        features: what the processor can do, as LLVM names it.
    """

    def __init__(self, real: Real = FLOAT, features: frozenset[str] = frozenset()) -> None:
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
        self._reals: dict[str, Real] = {}
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
        """Call one of LLVM's intrinsic functions."""
        self._declared[f"declare {type} @{name}({', '.join(a.type for a in arguments)})"] = None
        text = f"call {type} @{name}({', '.join(map(str, arguments))})"
        if type == "void":
            self.do(text)
            return Value(type, "")
        return self.put(type, text)

    def finish(self) -> str:
        """The whole text, with the function ``kernel``."""
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
        """The next word, an int64."""
        return self._load_word(INDEX)

    def counter(self) -> Value:
        """The address of the next word, which threads count in."""
        place = self._name()
        self._entry.append(f"  {place} = getelementptr i64, ptr %data, i64 {self._words}")
        self._words += 1
        return Value("ptr", place)

    def number(self) -> Value:
        """The next word, a float64, in every lane of a vector."""
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

    def array(self, real: Real | None = None) -> Value:
        """The next word, a NumPy array of these elements: the address of its data."""
        head = self._load_word("ptr")
        place, name = self._name(), self._name()
        self._entry.append(f"  {place} = getelementptr i8, ptr {head.name}, i64 {DATA}")
        self._entry.append(f"  {name} = load ptr, ptr {place}, align 8")
        if real is not None:
            assert real.name == self.real.name
            self._reals[name] = real
        return Value("ptr", name)

    # -- control ---------------------------------------------------------------------------------------

    def _label(self) -> str:
        self._names += 1
        return f"b{self._names}"

    def local(self, value: Value) -> Value:
        """A variable with this first value; see :meth:`get` and :meth:`set`. LLVM makes a register of it."""
        name = self._name()
        self._entry.append(f"  {name} = alloca {value.type}")
        made = Value(value.type, name)
        self.set(made, value)
        return made

    def get(self, variable: Value) -> Value:
        """A variable's value."""
        return self.put(variable.type, f"load {variable.type}, ptr {variable.name}")

    def set(self, variable: Value, value: Value) -> None:
        """Change a variable."""
        self.do(f"store {value}, ptr {variable.name}")

    def task_count(self) -> Value:
        """The number of tasks."""
        place = self.put("ptr", "getelementptr i64, ptr %data, i64 1")
        return self.put(INDEX, f"load i64, ptr {place.name}, align 8")

    @contextmanager
    def tasks(self) -> Iterator[Value]:
        """Repeat for one task after another, until no thread finds one: yields the task's number."""
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
        """Repeat for start, start + step, ... below stop, or until a variable is true: yields the index."""
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
        """Emit a block that runs where the condition holds."""
        inside, done = self._label(), self._label()
        self.do(f"br i1 {condition.name}, label %{inside}, label %{done}")
        self._body.append(f"{inside}:")
        yield
        self.do(f"br label %{done}")
        self._body.append(f"{done}:")

    def strips(self, start: Value, stop: Value, body: Callable[[Value, Value | None], None]) -> None:
        """Go from start to stop in vectors: ``body(index, mask)``, the mask None but for what is left at the end."""
        self.unrolled(start, stop, lambda index, mask, slot: body(index, mask), 1)

    def until(self, done: Value, start: Value, stop: Value, body: Callable[[Value, Value | None], None]) -> None:
        """Do the same as :meth:`strips`, until a variable is true, which the body sets."""
        length = self.put(INDEX, f"sub nsw {stop}, {start.name}")
        whole = self.plus(start, self.put(INDEX, f"and {length}, {-self.lanes}"))
        with self.loop(start, whole, self.lanes, unless=done) as index:
            body(index, None)
        rest = self.put("i1", f"icmp slt {whole}, {stop.name}")
        with self.when(self.both(rest, self.inverse(self.get(done)))):
            body(whole, self.first_lanes(self.minus(stop, whole)))

    def unrolled(self, start: Value, stop: Value, body: Callable[[Value, Value | None, int], None], slots: int) -> None:
        """Do the same as :meth:`strips`, several vectors a round: ``body(index, mask, slot)``, a slot for each."""

        def each(indices: Sequence[Value], mask: Value | None) -> None:
            for slot, index in enumerate(indices):
                body(index, mask, slot)

        self.side_by_side(start, stop, each, slots)

    def side_by_side(
        self, start: Value, stop: Value, body: Callable[[Sequence[Value], Value | None], None], count: int
    ) -> None:  # fmt: skip
        """Do the same as :meth:`strips`, ``count`` vectors (a power of 2) a round: ``body(indices, mask)``.

        With a count of 0 it is one vector a round, always with a mask: the body is in the code once, which is half.
        """
        if not count:
            with self.loop(start, stop, self.lanes) as index:
                body([index], self.first_lanes(self.minus(stop, index)))
            return
        for each in (count, 1) if count > 1 else (1,):
            step = each * self.lanes
            length = self.put(INDEX, f"sub nsw {stop}, {start.name}")
            whole = self.plus(start, self.put(INDEX, f"and {length}, {-step}"))
            with self.loop(start, whole, step) as index:
                body([self.plus(index, at * self.lanes) if at else index for at in range(each)], None)
            start = whole
        with self.when(self.put("i1", f"icmp slt {start}, {stop.name}")):
            left = self.put(INDEX, f"sub nsw {stop}, {start.name}")
            body([start], self.first_lanes(left))

    # -- integers --------------------------------------------------------------------------------------

    @staticmethod
    def index(value: int) -> Value:
        """An integer constant."""
        return Value(INDEX, str(value))

    def plus(self, a: Value, b: Value | int) -> Value:
        """The sum."""
        return self.put(INDEX, f"add nsw {a}, {b.name if isinstance(b, Value) else b}")

    def times(self, a: Value, b: Value | int) -> Value:
        """The product."""
        return self.put(INDEX, f"mul nsw {a}, {b.name if isinstance(b, Value) else b}")

    def minus(self, a: Value, b: Value) -> Value:
        """The difference."""
        return self.put(INDEX, f"sub nsw {a}, {b.name}")

    def divided(self, a: Value, b: Value) -> Value:
        """The quotient of numbers that are not negative, without what is left."""
        return self.put(INDEX, f"udiv {a}, {b.name}")

    def least(self, a: Value, b: Value) -> Value:
        """The smaller."""
        return self.call("llvm.smin.i64", INDEX, a, b)

    # -- memory ----------------------------------------------------------------------------------------

    def at(self, address: Value, index: Value, type: str = "") -> Value:
        """The address of an element."""
        return self.put("ptr", f"getelementptr {type or self._kept(address)[0]}, {address}, {index}")

    def load(self, address: Value, index: Value, mask: Value | None = None, other: Value | None = None) -> Value:
        """A vector from an element on; lanes outside the mask are ``other`` (default 0)."""
        real, (element, suffix) = self._real(address), self._kept(address)
        place, size, kept = self.at(address, index), real.nbytes, f"<{self.lanes} x {element}>"
        if mask is None:
            return self._widened(self.put(kept, f"load {kept}, {place}, align {size}"), real)
        name = f"llvm.masked.load.v{self.lanes}{suffix}.p0"
        filled = Value(kept, "zeroinitializer") if other is None or real.kept else other
        found = self._widened(self.call(name, kept, place, Value("i32", str(size)), mask, filled), real)
        return found if filled is other or other is None else self.choose(mask, found, other)

    def store(
        self, value: Value, address: Value, index: Value, mask: Value | None = None, streams: bool = False
    ) -> None:  # fmt: skip
        """Store a vector from an element on; one that streams goes past the caches, to the start of a cache line."""
        real = self._real(address)
        place, size, value = self.at(address, index), real.nbytes, self._narrowed(value, real)
        if mask is None and streams:
            self._streams = True
            self.do(f"store {value}, {place}, align {self.lanes * size}, !nontemporal !0")
        elif mask is None:
            self.do(f"store {value}, {place}, align {size}")
        else:
            name = f"llvm.masked.store.v{self.lanes}{self._kept(address)[1]}.p0"
            self.call(name, "void", value, place, Value("i32", str(size)), mask)

    def gather(self, address: Value, start: Value, step: Value, mask: Value | None = None) -> Value:
        """A vector of elements so far apart; lanes outside the mask are 0."""
        real, (element, suffix) = self._real(address), self._kept(address)
        kept, places = f"<{self.lanes} x {element}>", self._places(address, start, step)
        given = (places, Value("i32", str(real.nbytes)), self._or_all(mask), Value(kept, "zeroinitializer"))
        return self._widened(self.call(f"llvm.masked.gather.v{self.lanes}{suffix}.v{self.lanes}p0", kept, *given), real)

    def scatter(self, value: Value, address: Value, start: Value, step: Value, mask: Value | None = None) -> None:
        """Store a vector's elements so far apart."""
        real = self._real(address)
        given = (self._narrowed(value, real), self._places(address, start, step), Value("i32", str(real.nbytes)))
        name = f"llvm.masked.scatter.v{self.lanes}{self._kept(address)[1]}.v{self.lanes}p0"
        self.call(name, "void", *given, self._or_all(mask))

    def _places(self, address: Value, start: Value, step: Value) -> Value:
        """The addresses of elements so far apart, a lane each."""
        wide = f"<{self.lanes} x {INDEX}>"
        numbers = ", ".join(f"{INDEX} {lane}" for lane in range(self.lanes))
        apart = self.put(wide, f"mul <{self.lanes} x {INDEX}> <{numbers}>, {self.spread(step).name}")
        at = self.put(wide, f"add {apart}, {self.spread(start).name}")
        return self.put(f"<{self.lanes} x ptr>", f"getelementptr {self._kept(address)[0]}, {address}, {at}")

    def _or_all(self, mask: Value | None) -> Value:
        return self._every(self.mask, "i1 true") if mask is None else mask

    def _real(self, address: Value) -> Real:
        """The element type of an array."""
        return self._reals.get(address.name, self.real)

    def _kept(self, address: Value) -> tuple[str, str]:
        """The element type of an array in memory: LLVM's name, and the suffix of functions."""
        real = self._real(address)
        kept = real.kept or real
        return kept.name, kept.suffix

    def _widened(self, value: Value, real: Real) -> Value:
        """Convert a loaded value, a vector or one element, to the element type of registers."""
        if real.kept is None:
            return value
        wide, integers = (self.vector, self.integers) if value.is_vector else (real.name, real.integer)
        if real.kept.name == "half":
            return self.put(wide, f"fpext {value} to {wide}")
        bits = self.put(integers, f"zext {value} to {integers}")
        return self.put(wide, f"bitcast {self._shifted('shl', bits)} to {wide}")

    def _narrowed(self, value: Value, real: Real) -> Value:
        """Round a value to the element type of memory before it is stored: to nearest, ties to even."""
        if real.kept is None:
            return value
        kept = f"<{self.lanes} x {real.kept.name}>" if value.is_vector else real.kept.name
        if real.kept.name == "half":
            return self.put(kept, f"fptrunc {value} to {kept}")
        integers = self.integers if value.is_vector else real.integer
        bits = self.put(integers, f"bitcast {value} to {integers}")
        high = self._shifted("lshr", bits)
        odd = self.put(integers, f"and {high}, {self._whole(1, integers)}")
        half = self.put(integers, f"add {odd}, {self._whole(0x7FFF, integers)}")
        rounded = self._shifted("lshr", self.put(integers, f"add {bits}, {half.name}"))
        quiet = self.put(integers, f"or {high}, {self._whole(0x40, integers)}")
        is_nan = self.put(self.mask if value.is_vector else "i1", f"fcmp uno {value}, {value.name}")
        return self.put(kept, f"trunc {self.choose(is_nan, quiet, rounded)} to {kept}")

    def _shifted(self, direction: str, bits: Value) -> Value:
        return self.put(bits.type, f"{direction} {bits}, {self._whole(16, bits.type)}")

    def _whole(self, value: int, type: str) -> str:
        """An integer constant of a type, as text without the type."""
        return self.whole(value).name if type == self.integers else str(value)

    def prefetch(self, address: Value, start: Value, count: Value) -> None:
        """Prefetch the first elements from one on, as many as there are, up to some cache lines."""
        with self.loop(self.index(0), self.least(count, self.index(8 * self.lanes)), self.lanes) as at:
            place = self.at(address, self.plus(start, at))
            flags = [Value("i32", number) for number in ("0", "3", "1")]
            self.call("llvm.prefetch.p0", "void", place, *flags)

    def load_one(self, address: Value, index: Value) -> Value:
        """One element."""
        kept = self._kept(address)[0]
        return self._widened(self.put(kept, f"load {kept}, {self.at(address, index)}"), self._real(address))

    def load_index(self, address: Value, index: Value) -> Value:
        """One element of an int64 array."""
        return self.put(INDEX, f"load {INDEX}, {self.at(address, index, INDEX)}")

    def load_short_index(self, address: Value, index: Value) -> Value:
        """One element of an int32 array, as an index."""
        read = self.put("i32", f"load i32, {self.at(address, index, 'i32')}")
        return self.put(INDEX, f"sext {read} to {INDEX}")

    def store_one(self, value: Value, address: Value, index: Value) -> None:
        """Store one element."""
        self.do(f"store {self._narrowed(value, self._real(address))}, {self.at(address, index)}")

    # -- numbers ---------------------------------------------------------------------------------------

    def constant(self, value: float) -> Value:
        """A number in every lane."""
        if self.real.name == "float":
            try:
                value = struct.unpack("<f", struct.pack("<f", value))[0]
            except OverflowError:
                value = float("inf") if value > 0 else float("-inf")
        literal = "0x" + struct.pack(">d", value).hex().upper()
        return self._every(self.vector, f"{self.real.name} {literal}")

    def whole(self, value: int) -> Value:
        """An integer constant, of the elements' size, in every lane."""
        return self._every(self.integers, f"{self.real.integer} {value}")

    def _every(self, type: str, one: str) -> Value:
        return Value(type, f"splat ({one})")

    def spread(self, one: Value) -> Value:
        """A vector with one number in every lane."""
        vector = f"<{self.lanes} x {one.type}>"
        first = self.put(vector, f"insertelement {vector} poison, {one}, i64 0")
        zeros = f"<{self.lanes} x i32> zeroinitializer"
        return self.put(vector, f"shufflevector {first}, {vector} poison, {zeros}")

    def first(self, vector: Value) -> Value:
        """The first lane's number."""
        return self.put(self.real.name, f"extractelement {vector}, i64 0")

    def first_lanes(self, count: Value) -> Value:
        """The mask of the first ``count`` lanes."""
        numbers = ", ".join(f"i64 {lane}" for lane in range(self.lanes))
        return self.put(self.mask, f"icmp sgt {self.spread(count)}, <{numbers}>")

    def choose(self, condition: Value, yes: Value, no: Value) -> Value:
        """Select, lane by lane, one of two vectors."""
        return self.put(yes.type, f"select {condition}, {yes}, {no}")

    def compare(self, name: str, a: Value, b: Value) -> Value:
        """Compare numbers, as LLVM's fcmp names it: ``olt`` for <, ``oeq`` for =, all false for NaN."""
        return self.put(self.mask if a.is_vector else "i1", f"fcmp {name} {a}, {b.name}")

    def both(self, a: Value, b: Value) -> Value:
        """True where two conditions are."""
        return self.put(a.type, f"and {a}, {b.name}")

    def inverse(self, condition: Value) -> Value:
        """Negate one condition."""
        return self.put("i1", f"xor {condition}, true")

    def any(self, mask: Value) -> Value:
        """True where a condition is in some lane."""
        return self.call(f"llvm.vector.reduce.or.v{self.lanes}i1", "i1", mask)

    def binary(self, name: str, a: Value, b: Value) -> Value:
        """One of fadd, fsub, fmul and fdiv, rounded as it stands."""
        return self.put(a.type, f"{name} {a}, {b.name}")

    def intrinsic(self, name: str, *operands: Value) -> Value:
        """One of LLVM's functions of vectors, such as ``llvm.fabs``."""
        kind = f"v{self.lanes}{self.real.suffix}" if operands[0].is_vector else self.real.suffix
        return self.call(f"{name}.{kind}", operands[0].type, *operands)

    def total(self, value: Value) -> Value:
        """The sum of a vector's lanes."""
        name = f"llvm.vector.reduce.fadd.v{self.lanes}{self.real.suffix}"
        zero = Value(self.real.name, "-0.0")
        self._declared[f"declare {self.real.name} @{name}({self.real.name}, {self.vector})"] = None
        return self.put(self.real.name, f"call reassoc {self.real.name} @{name}({zero}, {value})")

    def largest(self, value: Value) -> Value:
        """The largest of a vector's lanes, NaN left aside."""
        return self.call(f"llvm.vector.reduce.fmax.v{self.lanes}{self.real.suffix}", self.real.name, value)
