"""Native runs: the recorded calls of many steps, made by one call without the interpreter.

A small function in LLVM assembly goes through a table of records. It first computes the addresses of all arrays: an
array is found through the item of the list that holds it (:class:`flowmx.ops.kernels.recording.Place`), so arrays may
be replaced between runs without any work here. If an array does not have the form that was recorded, nothing runs.

A record is eight words: its kind, a function, and up to six arguments. An argument that is an array is the address of a
*cell*, a word that holds the address of the array's data.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np

from flowmx import forks
from flowmx.ops.kernels.llvm import compiler, team
from flowmx.ops.kernels.llvm.assembly import DATA
from flowmx.ops.kernels.llvm.background_compilation import Program, begin_compiling
from flowmx.ops.kernels.onednn.layouts import pointer
from flowmx.ops.kernels.onednn.library import OneDNNError, check, library
from flowmx.ops.kernels.recording import LINE, LoopCall, NativeCall, Place, PrimitiveCall
from flowmx.ops.registry.operators import Array

_LOOP, _TEAM, _CALL, _SET, _COPY, _THREADS, _WORD = range(7)
"""The kinds of records: a loop on this thread, a loop on several, a call with a status, the address of a memory
object, a copy of bytes, the number of OpenMP threads, and an address as a word of a loop."""
_WORDS = 8
"""The words of a record."""
_CELL_WORDS = 6
"""The words that define a cell: the item of a list, rounding of the address, offset, required flags, and alignment."""
_CURRENT = 6
"""The word of the table in which a run stores the number of its current record."""
_CHANGED = -1
"""The result of a run that did nothing, because the form of an array has changed."""
_ITEMS = ctypes.sizeof(ctypes.c_void_p) * 3
"""The offset of the address of the items in a list object."""
_FLAGS = DATA + 48
"""The offset of the flags in an array object."""
_IN_C_ORDER = 1
"""The flag of an array in C order."""
_SHORT_BYTES, _SHORT_FLOPS = 1 << 18, 1 << 19
"""Runs with at most this much data and work keep the interpreter's lock: releasing it takes longer."""

_TEXT = """
define i64 @kernel(ptr %table) nounwind {
entry:
  %cell_count = load i64, ptr %table
  %cells_at = getelementptr i64, ptr %table, i64 1
  %cells = load ptr, ptr %cells_at
  %sources_at = getelementptr i64, ptr %table, i64 2
  %sources = load ptr, ptr %sources_at
  %record_count_at = getelementptr i64, ptr %table, i64 3
  %record_count = load i64, ptr %record_count_at
  %records_at = getelementptr i64, ptr %table, i64 4
  %records = load ptr, ptr %records_at
  %type_at = getelementptr i64, ptr %table, i64 5
  %type = load i64, ptr %type_at
  %current_at = getelementptr i64, ptr %table, i64 6
  br label %cell
cell:
  %number = phi i64 [0, %entry], [%next_number, %store]
  %is_cell = icmp ult i64 %number, %cell_count
  br i1 %is_cell, label %find, label %record
find:
  %first = mul i64 %number, {cell_words}
  %item_at = getelementptr i64, ptr %sources, i64 %first
  %item = load ptr, ptr %item_at
  %array = load ptr, ptr %item
  %its_type_at = getelementptr i8, ptr %array, i64 8
  %its_type = load i64, ptr %its_type_at
  %is_array = icmp eq i64 %its_type, %type
  br i1 %is_array, label %measure, label %changed
measure:
  %data_at = getelementptr i8, ptr %array, i64 {data}
  %data = load i64, ptr %data_at
  %round_at = getelementptr i64, ptr %item_at, i64 1
  %round = load i64, ptr %round_at
  %up = add i64 %data, %round
  %keep = xor i64 %round, -1
  %base = and i64 %up, %keep
  %offset_at = getelementptr i64, ptr %item_at, i64 2
  %offset = load i64, ptr %offset_at
  %address = add i64 %base, %offset
  %flags_at = getelementptr i8, ptr %array, i64 {flags}
  %flags32 = load i32, ptr %flags_at
  %flags = zext i32 %flags32 to i64
  %needed_at = getelementptr i64, ptr %item_at, i64 3
  %needed = load i64, ptr %needed_at
  %present = and i64 %flags, %needed
  %has_flags = icmp eq i64 %present, %needed
  %line_at = getelementptr i64, ptr %item_at, i64 4
  %line = load i64, ptr %line_at
  %rest = and i64 %address, %line
  %is_aligned = icmp eq i64 %rest, 0
  %is_same = and i1 %has_flags, %is_aligned
  br i1 %is_same, label %store, label %changed
store:
  %cell_at = getelementptr i64, ptr %cells, i64 %number
  store i64 %address, ptr %cell_at
  %next_number = add i64 %number, 1
  br label %cell
changed:
  ret i64 {changed}
record:
  %at = phi i64 [0, %cell], [%next_at, %next]
  %is_record = icmp ult i64 %at, %record_count
  br i1 %is_record, label %read, label %done
read:
  store i64 %at, ptr %current_at
  %begin = mul i64 %at, {words}
  %r = getelementptr i64, ptr %records, i64 %begin
  %kind = load i64, ptr %r
  %f_at = getelementptr i64, ptr %r, i64 1
  %f = load ptr, ptr %f_at
  %a_at = getelementptr i64, ptr %r, i64 2
  %a = load ptr, ptr %a_at
  %b_at = getelementptr i64, ptr %r, i64 3
  %b = load ptr, ptr %b_at
  %c_at = getelementptr i64, ptr %r, i64 4
  %c = load i64, ptr %c_at
  %d_at = getelementptr i64, ptr %r, i64 5
  %d = load ptr, ptr %d_at
  switch i64 %kind, label %done [i64 0, label %fill i64 1, label %fill i64 2, label %call i64 3, label %set
                                 i64 4, label %copy i64 5, label %threads i64 6, label %word_of]
fill:
  %word = phi i64 [0, %read], [0, %read], [%next_word, %move]
  %is_word = icmp ult i64 %word, %c
  br i1 %is_word, label %move, label %filled
move:
  %from = getelementptr i64, ptr %b, i64 %word
  %content = load i64, ptr %from
  %to = getelementptr i64, ptr %a, i64 %word
  store i64 %content, ptr %to
  %next_word = add i64 %word, 1
  br label %fill
filled:
  %is_alone = icmp eq i64 %kind, 0
  br i1 %is_alone, label %alone, label %shared
alone:
  call void %f(ptr %a)
  br label %next
shared:
  %e_at = getelementptr i64, ptr %r, i64 6
  %e = load ptr, ptr %e_at
  %limit_at = getelementptr i64, ptr %r, i64 7
  %limit = load i64, ptr %limit_at
  call void %f(ptr %d, ptr %e, ptr %a, i64 %limit)
  br label %next
call:
  %called = call i32 %f(ptr %a, ptr %b, i64 %c, ptr %d)
  br label %check
set:
  %target = load ptr, ptr %b
  %was_set = call i32 %f(ptr %a, ptr %target)
  br label %check
check:
  %status = phi i32 [%called, %call], [%was_set, %set]
  %is_good = icmp eq i32 %status, 0
  br i1 %is_good, label %next, label %failed
failed:
  %failure = zext i32 %status to i64
  ret i64 %failure
copy:
  %into = load ptr, ptr %a
  %out_of = load ptr, ptr %b
  %copied = call ptr %f(ptr %into, ptr %out_of, i64 %c)
  br label %next
threads:
  call void %f(ptr %a)
  br label %next
word_of:
  %placed = load i64, ptr %b
  store i64 %placed, ptr %a
  br label %next
next:
  %next_at = add i64 %at, 1
  br label %record
done:
  ret i64 0
}
"""


def _text(features: frozenset[str]) -> str:
    values = {"cell_words": _CELL_WORDS, "words": _WORDS, "data": DATA, "flags": _FLAGS, "changed": _CHANGED}
    text = _TEXT
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


_program = Program(_text)


@lru_cache(1)
def knows_objects() -> bool:
    """Return whether lists and arrays have the fields at the offsets at which native runs read them."""
    if not (sys.implementation.name == "cpython" and compiler.knows_arrays()):
        return False
    item, array = object(), np.empty((2, 3))
    probe = [item, array]
    items = ctypes.c_void_p.from_address(id(probe) + _ITEMS).value
    words = (ctypes.c_void_p * 2).from_address(items or 0) if items else (None, None)
    flags = [ctypes.c_int.from_address(id(each) + _FLAGS).value for each in (array, array.T)]
    kind = ctypes.c_void_p.from_address(id(array) + 8).value
    return (
        list(words) == [id(item), id(array)]
        and [flag & _IN_C_ORDER for flag in flags] == [1, 0]
        and kind == id(np.ndarray)
    )


_begun: set[int] = set()
"""The fork generations in which the function's compilation was started."""


def is_ready() -> bool:
    """Return whether the function is compiled; the first call starts to compile it in the background."""
    if _program.compiled is None and forks.generation() not in _begun:
        _begun.add(forks.generation())
        begin_compiling([_program])
    return _program.compiled is not None


def prepare() -> bool:
    """Wait until the function is compiled; return whether it is."""
    return knows_objects() and _program.get() is not None


class _Call(NamedTuple):
    """The function that makes the calls of a table: with the interpreter's lock, and without."""

    holding: Any
    releasing: Any


@lru_cache(1)
def _function(address: int) -> _Call:
    types = ctypes.c_int64, ctypes.c_void_p
    return _Call(ctypes.PYFUNCTYPE(*types)(address), ctypes.CFUNCTYPE(*types)(address))


class NativeRun:
    """The calls of steps as one native call.

    Args:
        steps: the calls of each step.
        threads: the number of OpenMP threads of the calling thread.
        flops: the number of floating-point operations of all steps.

    Attributes:
        is_short: whether it takes so little time that it keeps the interpreter's lock.
    """

    def __init__(self, steps: Sequence[Sequence[NativeCall]], threads: int, flops: int) -> None:
        self._calls = [*chain.from_iterable(steps)]  # keeps primitives and lists alive
        self._threads = threads
        self._cells: dict[tuple[int, int, int, bool, int], int] = {}
        self._sources: list[int] = []
        self._records: list[list[int]] = []
        self._step_of: list[int] = []
        self._words: list[Any] = []
        places = [place for call in self._calls for place in _places(call)]
        self._addresses = (ctypes.c_int64 * max(1, len(places)))()
        self._first_cell = ctypes.addressof(self._addresses)
        current = threads
        for number, calls in enumerate(steps):
            for call in calls:
                if isinstance(call, PrimitiveCall) and call.threads != current:
                    current = call.threads
                    self._add(number, _THREADS, _addresses().use_threads, current)
                self._add_call(number, call)
        if current != threads:
            self._add(len(steps) - 1, _THREADS, _addresses().use_threads, threads)
        arrays = {id(array): array for place in places if (array := place.arrays[place.position]) is not None}
        nbytes = sum(array.nbytes for array in arrays.values())
        self.is_short = (
            nbytes <= _SHORT_BYTES and flops <= _SHORT_FLOPS and not any(record[0] == _TEAM for record in self._records)
        )
        assert _program.compiled is not None
        self._call = _function(_program.compiled.address)[not self.is_short]
        self._table = self._laid_out()

    def _laid_out(self) -> Any:
        self._source_words = (ctypes.c_int64 * len(self._sources))(*self._sources)
        self._record_words = (ctypes.c_int64 * (_WORDS * len(self._records)))(*chain.from_iterable(self._records))
        return (ctypes.c_int64 * (_CURRENT + 1))(
            len(self._cells), self._first_cell, ctypes.addressof(self._source_words), len(self._records),
            ctypes.addressof(self._record_words), id(np.ndarray),
        )  # fmt: skip

    def __call__(self) -> bool:
        """Make the calls; return False, having done nothing, if an array has another form than when it was recorded.

        Raises:
            OneDNNError: a primitive of the current step failed.
        """
        result: int = self._call(self._table)
        if not result:
            return True
        if result == _CHANGED:
            return False
        lib = library()
        if lib is not None and lib.threads() != self._threads:
            lib.use_threads(self._threads)
        check("primitive_execute", result)
        raise OneDNNError("oneDNN: primitive_execute failed")

    def words_of(self, loop: int, first: int, count: int) -> memoryview:
        """Return some arguments of a loop as bytes, through which later runs get other values.

        Args:
            loop: the position of the loop among the recorded loops.
            first: the position of the first argument.
            count: the number of arguments.
        """
        return memoryview(self._words[2 * loop]).cast("B")[8 * first : 8 * (first + count)]

    @property
    def current_step(self) -> int:
        """The position of the step that runs, or that ran last."""
        current: int = self._table[_CURRENT]
        return self._step_of[current]

    def _add(self, step: int, kind: int, function: int, *arguments: int) -> None:
        self._records.append([kind, function, *arguments, *[0] * (_WORDS - 2 - len(arguments))])
        self._step_of.append(step)

    def _add_call(self, step: int, call: NativeCall) -> None:
        if isinstance(call, LoopCall):
            self._add_loop(step, call)
        elif isinstance(call, PrimitiveCall):
            addresses, bound = _addresses(), call.call
            for memory, place in zip(bound.memories, call.arguments, strict=True):
                self._add(step, _SET, addresses.set_pointer, memory.value, self._cell(place))
            self._add(
                step, _CALL, addresses.execute, bound.primitive.value, addresses.stream, bound.count,
                ctypes.addressof(bound.table),
            )  # fmt: skip
        else:
            cells = self._cell(call.target), self._cell(call.source)
            self._add(step, _COPY, _addresses().copy, *cells, call.nbytes)

    def _add_loop(self, step: int, call: LoopCall) -> None:
        count = len(call.words) // 8
        words = (ctypes.c_int64 * count).from_buffer_copy(call.words)
        for at, place in enumerate(call.arrays, count - len(call.arrays)):
            cell = self._cell(place, call.needs_lines)
            if call.takes_addresses:
                self._add(step, _WORD, 0, ctypes.addressof(words) + 8 * at, cell)
            else:  # the loop reads the address from an array object: a cell is one whose address is the only field
                words[at] = cell - DATA
        work = (ctypes.c_int64 * count)()
        self._words += words, work
        places = ctypes.addressof(work), ctypes.addressof(words)
        runner = team.runner(call.threads) if call.threads > 1 else None
        if runner is None:
            self._add(step, _LOOP, call.function, *places, count)
        else:
            self._add(step, _TEAM, runner.function, *places, count, runner.team, call.function, call.threads - 1)

    def _cell(self, place: Place, needs_lines: bool = False) -> int:
        """Return the address of the cell of a place."""
        array = cast("Array", place.arrays[place.position])
        start = pointer(array)
        address = (-(-start // LINE) * LINE if place.is_aligned else start) + place.offset
        line = LINE - 1 if needs_lines and address % LINE == 0 else 0
        key = (id(place.arrays), place.position, place.offset, place.is_aligned, line)
        number = self._cells.get(key)
        if number is None:
            number = self._cells[key] = len(self._cells)
            items: int = ctypes.c_int64.from_address(id(place.arrays) + _ITEMS).value
            self._sources += [
                items + 8 * place.position, LINE - 1 if place.is_aligned else 0, place.offset,
                _IN_C_ORDER if array.flags.c_contiguous else 0, line, 0,
            ]  # fmt: skip
        return self._first_cell + 8 * number


def _places(call: NativeCall) -> Sequence[Place]:
    if isinstance(call, LoopCall):
        return call.arrays
    return call.arguments if isinstance(call, PrimitiveCall) else (call.target, call.source)


class _Addresses(NamedTuple):
    """The addresses of the library functions that records call."""

    copy: int
    use_threads: int = 0
    execute: int = 0
    set_pointer: int = 0
    stream: int = 0


@lru_cache(1)
def _addresses() -> _Addresses:
    copy = _address(ctypes.CDLL(None).memcpy)
    lib = library()
    if lib is None:
        return _Addresses(copy)
    threads, execute, set_pointer = map(_address, (lib.use_threads, lib.execute, lib.set_pointer))
    return _Addresses(copy, threads, execute, set_pointer, lib.stream.value or 0)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
