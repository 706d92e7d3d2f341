"""The kernel of chains: the formulas of the links are substituted into each other and run as one loop.

Chains of the same form share their loops, whatever their parameters.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import NamedTuple, cast

from flowmx.bounded_tables import make_room
from flowmx.ops.compiled.chain import Chain
from flowmx.ops.formulas.expressions import (
    Expr,
    Parameters,
    evaluate,
    instruction_count,
    parameter,
    placeholder,
    uniforms,
)
from flowmx.ops.kernels.llvm import compiler
from flowmx.ops.kernels.llvm.assembly import FloatType
from flowmx.ops.kernels.llvm.background_compilation import Program, begin_compiling, load_ahead
from flowmx.ops.kernels.llvm.elementwise import Fused, compute_in_common_layout, float_type_of, is_exact
from flowmx.ops.kernels.llvm.strided_loops import Axes, StridedLoop, axes_of, streams, vectors
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.kernels import ArrayLayout, kernel, kernel_for
from flowmx.ops.registry.operators import Array, Operator, Run, Shape

_MIN_SIZE = 512
"""The minimum product of elements and links for which a compilation is worthwhile."""
_MAX_CALLS = 1024
"""Maximum number of layouts of arrays for which a chain stays prepared."""


class _LinkParameters(Parameters):
    """The parameters of one link: in the chain, the link's number precedes their names."""

    def __init__(self, op: Operator, number: int) -> None:
        super().__init__(op)
        self._number = number

    def __getattr__(self, name: str) -> Expr:
        return parameter(f"{self._number} {name}")


def formulas(chain: Chain) -> list[Expr]:
    """Return the formulas of a chain's outputs in terms of its inputs."""
    values = [placeholder(at) for at in range(chain.count)]
    for number, link in enumerate(chain.links):
        values.append(_formula(link.op).formula(_LinkParameters(link.op, number), *[values[at] for at in link.inputs]))
    return [values[at] for at in chain.results]


class _Form:
    """The formulas and compiled loops shared by chains of the same form.

    Args:
        chain: one of the chains.
        real: the element type.
    """

    def __init__(self, chain: Chain, real: FloatType) -> None:
        self._outputs = formulas(chain)
        self._real = real
        self._loops: dict[object, StridedLoop] = {}
        self._steps = instruction_count(self._outputs)
        self.uniforms = uniforms(self._outputs)

    def loop(self, axes: Axes, is_streaming: bool) -> StridedLoop:
        """Return the loop along axes."""
        key = (axes.is_constant, len(axes.lengths), is_streaming, vectors(self._steps, math.prod(axes.lengths)))
        loop = self._loops.get(key)
        if loop is None:
            loop = self._loops.setdefault(key, StridedLoop(self._outputs, self._real, *key))
        return loop


class _Call:
    """A chain prepared for arrays of one layout.

    Args:
        form: the chain's form.
        order: the chain's inputs in the order of the form's inputs.
        axes: the axes of the loop over the arrays, in that order.
        numbers: the chain's scalars.
    """

    def __init__(self, form: _Form, order: Sequence[int], axes: Axes, numbers: list[float]) -> None:
        self._form = form
        self._order = order
        self._axes = axes
        self._numbers = numbers
        self._walk = form.loop(axes, False)
        self._threads = 0
        self._words: tuple[float, ...] = ()

    @property
    def program(self) -> Program:
        """The function that computes the chain if outputs stay in the caches."""
        return self._walk.program

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Run it; return False if it is not compiled (yet)."""
        loop, threads = self._walk, self._walk.threads(self._axes)
        if threads != self._threads:
            self._words = loop.words(self._axes, self._numbers, threads)
            self._threads = threads
        if streams(self._axes, inputs, outputs):  # addresses may differ from call to call
            loop = self._form.loop(self._axes, True)
        return loop.run(self._words, [*[inputs[at] for at in self._order], *outputs], threads)


_log = logging.getLogger("flowmx.kernels")
_forms: dict[Hashable, _Form] = {}


def _formula(op: Operator) -> Fused:
    fused = kernel_for("cpu", op.name)
    assert isinstance(fused, Fused)
    return fused


@lru_cache(maxsize=1)
def can_compile() -> bool:
    """Return whether there is a compiler; the first call starts to load it if the cache is empty."""
    is_installed = find_spec("llvmlite") is not None
    if not is_installed:
        _log.warning("llvmlite is not installed: elementwise operators run in NumPy one by one, slower")
    if is_installed and not compiler.is_known():
        load_ahead()  # it takes as long as planning a graph, which continues meanwhile
    return is_installed


def weight(op: Operator, dtype: DType, count: int) -> int | None:
    """Estimate the instructions of an operator as a link of a chain; return None if it cannot be one.

    Args:
        op: the operator.
        dtype: the element type of its inputs and its output.
        count: the number of its inputs.
    """
    if not can_compile():
        return None
    weights: dict[object, int | None] = op.__dict__.get("_weights", {})
    if (dtype, count) not in weights:
        weights[dtype, count] = _weight(op, dtype, count)
        object.__setattr__(op, "_weights", weights)
    return weights[dtype, count]


def _weight(op: Operator, dtype: DType, count: int) -> int | None:
    fused, real = kernel_for("cpu", op.name), float_type_of(dtype)
    if real is None or not isinstance(fused, Fused):
        return None
    formula = fused.formula(Parameters(op), *[placeholder(at) for at in range(count)])
    return instruction_count([formula]) if isinstance(formula, Expr) and is_exact([formula], real) else None


@kernel("cpu", "_chain", only_native=True)
def compute(chain: Chain, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Run a chain as one loop if it is large enough and a loop supports its arrays, else link by link."""
    if outputs[0].size * len(chain.links) < _MIN_SIZE or not (
        _run_loop(chain, inputs, outputs)
        or compute_in_common_layout(outputs[0], inputs, outputs, lambda *laid: _run_loop(chain, *laid))
    ):
        chain.forward(run, inputs, outputs)


class _Layout(NamedTuple):
    """The layout of an array that is not allocated yet, with the attribute names of arrays."""

    shape: Shape
    strides: Shape
    dtype: DType

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Return the size of an element in bytes."""
        return self.dtype.itemsize


def compile_ahead(chains: Sequence[tuple[Operator, Sequence[ArrayLayout], Sequence[ArrayLayout]]]) -> None:
    """Prepare chains for inputs and outputs of these layouts, and start compiling their loops in the background."""
    programs = []
    for chain, *arrays in chains:
        inputs, outputs = ([_Layout(s, tuple([d.itemsize * n for n in steps]), d) for s, steps, d in a] for a in arrays)
        assert isinstance(chain, Chain)
        if math.prod(outputs[0].shape) * len(chain.links) >= _MIN_SIZE:
            call = _call(chain, cast("Sequence[Array]", inputs), cast("Sequence[Array]", outputs))
            programs += [] if call is None else [call.program]
    begin_compiling(programs)


def _run_loop(chain: Chain, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """Run the loop; return False if no loop fits these arrays, or it is not compiled (yet)."""
    call = _call(chain, inputs, outputs)
    return call is not None and call.run(inputs, outputs)


def _call(chain: Chain, inputs: Sequence[Array], outputs: Sequence[Array]) -> _Call | None:
    """Return a chain prepared for these arrays, from the cache or prepared now; None if no loop fits."""
    arrays = [*inputs, *outputs]
    key = (outputs[0].dtype, *[(array.shape, array.strides) for array in arrays])
    calls: dict[object, _Call | None] = chain.prepared
    if key in calls:
        return calls[key]
    make_room(calls, _MAX_CALLS)
    call = calls[key] = _prepare(chain, inputs, outputs)
    return call


def _prepare(chain: Chain, inputs: Sequence[Array], outputs: Sequence[Array]) -> _Call | None:
    order, ordered = in_order_of_use(chain)
    axes = axes_of([*[inputs[at] for at in order], *outputs])
    if axes is None or any(axes.is_constant[len(inputs) :]):
        return None
    form = _form(ordered, outputs[0].dtype)
    return _Call(form, order, axes, numbers(ordered, form.uniforms))


def in_order_of_use(chain: Chain) -> tuple[list[int], Chain]:
    """Return a chain's inputs in the order of their first use, and the chain with its inputs in that order.

    Chains that otherwise agree then have one form, which is compiled once.
    """
    used = dict.fromkeys([value for link in chain.links for value in link.inputs if value < chain.count])
    order = [*used, *[at for at in range(chain.count) if at not in used]]
    place = {value: at for at, value in enumerate(order)}
    links = [link._replace(inputs=tuple([place.get(value, value) for value in link.inputs])) for link in chain.links]
    ordered = Chain.of(chain.count, links, [place.get(value, value) for value in chain.results])
    assert isinstance(ordered, Chain)
    return order, ordered


def numbers(chain: Chain, uniforms: Sequence[Expr]) -> list[float]:
    """Return the scalars of a chain's calls: the values of these expressions."""
    return [evaluate(uniform, lambda name: _number(chain, name)) for uniform in uniforms]


def _number(chain: Chain, name: str) -> float:
    """Return the value of a parameter of one of the links."""
    number, attribute = name.split()
    value: float = getattr(chain.links[int(number)].op, attribute)
    return value


def form_of(chain: Chain) -> Hashable:
    """Return the key of a chain's formulas: equal for chains that one kernel can compute."""
    links = []
    for link in chain.links:
        variant = _formula(link.op).variant
        links.append((link.op.name, link.inputs, None if variant is None else variant(link.op)))
    return chain.count, tuple(links), chain.results


def _form(chain: Chain, dtype: DType) -> _Form:
    key = (dtype, form_of(chain))
    form = _forms.get(key)
    if form is None:
        real = float_type_of(dtype)
        assert real is not None
        form = _forms.setdefault(key, _Form(chain, real))
    return form
