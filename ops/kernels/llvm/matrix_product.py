"""The product of a matrix and packed weights, with bias, addend and activation.

The weights are packed in *parts*: some inputs of a panel of 64 outputs, in the order in which the loop reads them.
While the loop multiplies rows by one part, it prefetches the next one. The weights of a large layer do not fit into the
second-level cache, and a product of few rows that does not prefetch them spends a fifth of its time waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

from flowmx.ops.formulas.expressions import Expr, placeholder
from flowmx.ops.kernels.llvm.assembly import Code, Value
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.llvm.lowering import lower
from flowmx.ops.kernels.llvm.math_functions import sigmoid, tanh

LANES = 16
VECTORS = 4
"""The vectors of a panel."""
PANEL = LANES * VECTORS
"""The outputs of a panel."""
MAX_ROWS = 6
"""The rows that are multiplied together: their sums take 24 of 32 registers."""
DEPTH = 4
"""The inputs of a round of the innermost loop."""
ACTIVATIONS = ("", "relu", "leaky", "clip", "swish", "sigmoid", "tanh")

_FORMULAS: dict[str, Callable[[Expr], Expr]] = {
    "sigmoid": sigmoid,
    "tanh": tanh,
    "swish": lambda x: x * sigmoid(x),
}


class Kind(NamedTuple):
    """The key of a function.

    Attributes:
        rows: the rows of a large block; small blocks have one less.
        lines: the cache lines that a round prefetches.
        activation: one of ``ACTIVATIONS``.
        has_bias: whether there is a bias.
        has_addend: whether the product is added to the output.
    """

    rows: int
    lines: int
    activation: str
    has_bias: bool
    has_addend: bool


WORDS = (
    "large", "blocks", "chunk", "inputs", "outputs", "depth", "parts", "data_step", "out_step", "groups", "group",
    "panels",
)  # fmt: skip
"""The numbers of large blocks of rows, of all blocks, of blocks of a chunk, of inputs, of outputs, of inputs of a part,
of parts, of elements from row to row of data and output, of groups of panels, of panels of a group, and of all panels.
Each task is a group of panels for a chunk of rows."""


class Part(NamedTuple):
    """A part of a panel: its number, its first input, the number of inputs, the panel, and the place of its weights."""

    number: Value
    start: Value
    depth: Value
    panel: Value
    place: Value


class Target(NamedTuple):
    """The outputs of a panel.

    Attributes:
        column: the first output.
        masks: for each vector, the lanes with outputs.
        added: for each vector, the lanes that are added to the output.
        is_last: whether the sums are complete.
    """

    column: Value
    masks: list[Value]
    added: list[Value]
    is_last: Value


class Writer:
    """Generates the LLVM code of the function."""

    def __init__(self, kind: Kind, features: frozenset[str]) -> None:
        self.kind = kind
        self.code = code = Code(features=features)
        (
            self.large, self.blocks, self.chunk, self.inputs, self.outputs, self.depth, self.parts, self.data_step,
            self.out_step, self.groups, self.group, self.panels,
        ) = [code.word() for _ in WORDS]  # fmt: skip
        self.read_words()

    def read_words(self) -> None:
        """Read the words after ``WORDS``."""
        code = self.code
        self.activation_bound = code.number()
        self.data, self.weights, self.out = code.address(), code.address(), code.address()
        self.bias = code.address() if self.kind.has_bias else None

    def panel_at(self, number: Value, first: Value, last: Value) -> Value:
        """Return the panel that is computed at a position from ``first`` to ``last``."""
        return number

    def write(self) -> str:
        """Return the text: for each task, the parts of inputs, the panels, and the blocks of rows."""
        code = self.code
        with code.tasks() as task:
            number = code.divided(task, self.groups)
            top = code.times(number, self.chunk)
            bottom = code.least(code.plus(top, self.chunk), self.blocks)
            first = code.times(code.minus(task, code.times(number, self.groups)), self.group)
            last = code.least(code.plus(first, self.group), self.panels)
            with code.loop(code.index(0), self.parts) as part:
                start = code.times(part, self.depth)
                depth = code.least(self.depth, code.minus(self.inputs, start))
                before = code.times(code.times(start, self.panels), PANEL)
                with code.loop(first, last) as at:
                    panel = self.panel_at(at, first, last)
                    place = code.plus(before, code.times(code.times(panel, depth), PANEL))
                    self._panel(top, bottom, Part(part, start, depth, panel, place))
        return code.finish()

    def distance_ahead(self, part: Part) -> Value:
        """Return the distance from the weights of a part to those of the next one."""
        return self.code.times(part.depth, PANEL)

    def _panel(self, top: Value, bottom: Value, part: Part) -> None:
        """Multiply the blocks of rows from ``top`` to ``bottom`` by a part of a panel."""
        code, rows = self.code, self.kind.rows
        column = code.times(part.panel, PANEL)
        masks = [
            code.first_lanes(code.minus(self.outputs, code.plus(column, at * LANES))) for at in range(VECTORS)
        ]  # fmt: skip
        is_later = code.spread(code.put("i1", f"icmp sgt {part.number}, 0"))
        added = masks if self.kind.has_addend else [code.both(mask, is_later) for mask in masks]
        is_last = code.put("i1", f"icmp eq {code.plus(part.number, 1)}, {self.parts.name}")
        target = Target(column, masks, added, is_last)
        ahead = code.local(code.plus(part.place, self.distance_ahead(part)))
        with code.loop(top, code.least(bottom, self.large)) as block:
            self._block(rows, code.times(block, rows), part, target, ahead)
        if rows > 1:
            with code.loop(code.call("llvm.smax.i64", "i64", top, self.large), bottom) as block:
                self._block(rows - 1, code.plus(code.times(block, rows - 1), self.large), part, target, ahead)

    def _block(self, count: int, row: Value, part: Part, target: Target, ahead: Value) -> None:
        """Multiply ``count`` rows by a part of a panel; ``ahead`` is the place of the weights to prefetch next."""
        code, zero = self.code, self.code.constant(0.0)
        sums = [[code.local(zero) for _ in range(VECTORS)] for _ in range(count)]
        offsets = [code.plus(code.times(code.plus(row, at), self.data_step), part.start) for at in range(count)]
        rows = [code.at(self.data, offset, "float") for offset in offsets]
        weights = code.at(self.weights, part.place, "float")

        def multiply(index: Value) -> None:
            base = code.times(index, PANEL)
            vectors = [code.load(weights, code.plus(base, at * LANES)) for at in range(VECTORS)]
            for data, totals in zip(rows, sums, strict=True):
                factor = code.spread(code.load_one(data, index))
                for total, vector in zip(totals, vectors, strict=True):
                    code.set(total, code.intrinsic("llvm.fma", factor, vector, code.get(total)))

        whole = code.put("i64", f"and {part.depth}, {-DEPTH}")
        with code.loop(code.index(0), whole, DEPTH) as index:
            for at in range(DEPTH):
                multiply(code.plus(index, at))
            self._prefetch(ahead)
        with code.loop(whole, part.depth) as index:
            multiply(index)
        self.finish([(code.plus(row, at), totals) for at, totals in enumerate(sums)], target)

    def _prefetch(self, ahead: Value) -> None:
        """Prefetch some lines of the next part into the second-level cache."""
        code, start = self.code, self.code.get(ahead)
        for line in range(self.kind.lines):
            place = code.at(self.weights, code.plus(start, line * LANES), "float")
            code.call("llvm.prefetch.p0", "void", place, *[Value("i32", number) for number in ("0", "2", "1")])
        code.set(ahead, code.plus(start, self.kind.lines * LANES))

    def finish(self, rows: Sequence[tuple[Value, list[Value]]], target: Target) -> None:
        """Finish rows, which have the sums in these variables."""
        for row, totals in rows:
            self._finish_row(row, totals, target)

    def _finish_row(self, row: Value, totals: list[Value], target: Target) -> None:
        """Store the sums of a row, added to previous ones, and after the last part with bias and activation."""
        code = self.code
        start = code.plus(code.times(row, self.out_step), target.column)
        places = [code.plus(start, at * LANES) for at in range(VECTORS)]
        for total, place, mask in zip(totals, places, target.added, strict=True):
            code.set(total, code.binary("fadd", code.get(total), code.load(self.out, place, mask)))
        with code.when(target.is_last):
            for at, total in enumerate(totals):
                value = code.get(total)
                if self.bias is not None:
                    shift = code.load(self.bias, code.plus(target.column, at * LANES), target.masks[at])
                    value = code.binary("fadd", value, shift)
                code.set(total, self._activate(value))
        for total, place, mask in zip(totals, places, target.masks, strict=True):
            code.store(code.get(total), self.out, place, mask)

    def _activate(self, value: Value) -> Value:
        code, activation = self.code, self.kind.activation
        x = placeholder(0)
        if activation in _FORMULAS:
            return lower(code, [_FORMULAS[activation](x)], {x: value})[0]
        if not activation:
            return value
        zero = code.constant(0.0)
        low = code.binary("fmul", self.activation_bound, value) if activation == "leaky" else zero
        value = code.choose(code.compare("ogt", value, zero), value, low)
        return (
            code.choose(code.compare("olt", value, self.activation_bound), value, self.activation_bound)
            if activation == "clip"
            else value
        )


def _write(kind: Kind, features: frozenset[str]) -> str:
    return Writer(kind, features).write()


@cache
def program(kind: Kind) -> Program:
    """Return the function: the words ``WORDS``, edge, data, weights, output, and bias."""
    return Program(partial(_write, kind), is_optimized=True)
