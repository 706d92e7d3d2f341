"""The kernel of chains: the formulas of their links put into each other, as one loop.

Chains of the same form share their loops, whatever their parameters are.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

from flowmx.ops.compiled.chain import Chain
from flowmx.ops.formulas.expressions import Expr, Parameters, evaluate, parameter, placeholder, steps, uniforms
from flowmx.ops.kernels.llvm import compiler
from flowmx.ops.kernels.llvm.code import Real
from flowmx.ops.kernels.llvm.elementwise import Fused, computed_alike, is_exact, real_of
from flowmx.ops.kernels.llvm.program import Program, begin_compiling, load_ahead
from flowmx.ops.kernels.llvm.walks import Axes, Walk, axes_of, streams, vectors
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Laid, Operator, Run, Shape, kernel, kernel_for

_LEAST = 512
"""Elements times links below which it is not worth a compilation."""
_MOST_CALLS = 64
"""Layouts of arrays for which a chain stays prepared."""


class _Of(Parameters):
    """The parameters of one link: those of the chain have its number before their names."""

    def __init__(self, op: Operator, number: int) -> None:
        super().__init__(op)
        self._number = number

    def __getattr__(self, name: str) -> Expr:
        return parameter(f"{self._number} {name}")


def formulas(chain: Chain) -> list[Expr]:
    """The formulas of a chain's outputs, of its inputs."""
    values = [placeholder(at) for at in range(chain.count)]
    for number, link in enumerate(chain.links):
        values.append(_formula(link.op).formula(_Of(link.op, number), *[values[at] for at in link.inputs]))
    return [values[at] for at in chain.results]


class _Form:
    """The formulas and compiled walks shared by chains of one form.

    Args:
        chain: one of them.
        real: the element type.
    """

    def __init__(self, chain: Chain, real: Real) -> None:
        self._outputs = formulas(chain)
        self._real = real
        self._walks: dict[Any, Walk] = {}
        self._steps = steps(self._outputs)
        self.uniforms = uniforms(self._outputs)

    def walk(self, axes: Axes, is_streaming: bool) -> Walk:
        """The loop along axes."""
        key = (axes.still, len(axes.lengths), is_streaming, vectors(self._steps, math.prod(axes.lengths)))
        known = self._walks.get(key)
        if known is None:
            known = self._walks.setdefault(key, Walk(self._outputs, self._real, *key))
        return known


class _Call:
    """A chain prepared for arrays of one layout.

    Args:
        form: its form.
        order: the chain's inputs in the order of the form's.
        axes: what the arrays are walked along, in that order.
        numbers: its scalars.
    """

    def __init__(self, form: _Form, order: Sequence[int], axes: Axes, numbers: list[float]) -> None:
        self._form = form
        self._order = order
        self._axes = axes
        self._numbers = numbers
        self._walk = form.walk(axes, False)
        self._threads = 0
        self._words: tuple[float, ...] = ()

    @property
    def program(self) -> Program:
        """The function that computes it, where outputs stay in the caches."""
        return self._walk.program

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Run it; False where it is not compiled (yet)."""
        walk, threads = self._walk, self._walk.threads(self._axes)
        if threads != self._threads:
            self._words = walk.words(self._axes, self._numbers, threads)
            self._threads = threads
        if streams(self._axes, inputs, outputs):  # the addresses may be others each time
            walk = self._form.walk(self._axes, True)
        return walk.run(self._words, [*[inputs[at] for at in self._order], *outputs], threads)


_forms: dict[Hashable, _Form] = {}


def _formula(op: Operator) -> Fused:
    found = kernel_for("cpu", op.name)
    assert isinstance(found, Fused)
    return found


@lru_cache(maxsize=1)
def can_compile() -> bool:
    """Tell whether there is a compiler; the first time it begins to be loaded, where the cache is empty."""
    found = find_spec("llvmlite") is not None
    if found and not compiler.is_known():
        load_ahead()  # it takes as long as many a graph, which is planned meanwhile
    return found


def weight(op: Operator, dtype: DType, count: int) -> int | None:
    """About how many instructions an operator takes as a link of a chain; None where it cannot be one.

    Args:
        op: the operator.
        dtype: of its inputs and its output.
        count: how many inputs it has.
    """
    if not can_compile():
        return None
    known: dict[Any, int | None] = op.__dict__.get("_weights", {})
    if (dtype, count) not in known:
        known[dtype, count] = _weight(op, dtype, count)
        object.__setattr__(op, "_weights", known)
    return known[dtype, count]


def _weight(op: Operator, dtype: DType, count: int) -> int | None:
    found, real = kernel_for("cpu", op.name), real_of(dtype)
    if real is None or not isinstance(found, Fused):
        return None
    made = found.formula(Parameters(op), *[placeholder(at) for at in range(count)])
    return steps([made]) if isinstance(made, Expr) and is_exact([made], real) else None


@kernel("cpu", "_chain")
def compute(chain: Chain, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Run a chain as one loop, where it is big enough and its arrays can be walked; else link by link."""
    if outputs[0].size * len(chain.links) < _LEAST or not (
        _computed(chain, inputs, outputs)
        or computed_alike(outputs[0], inputs, outputs, lambda *laid: _computed(chain, *laid))
    ):
        chain.forward(run, inputs, outputs)


class _Lying(NamedTuple):
    """The layout of an array that is not there yet, by the names that arrays have for it."""

    shape: Shape
    strides: Shape
    dtype: DType

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize


def compile_ahead(chains: Sequence[tuple[Operator, Sequence[Laid], Sequence[Laid]]]) -> None:
    """Prepare chains for inputs and outputs that lie like this, and let their loops be compiled meanwhile."""
    found = []
    for chain, *arrays in chains:
        inputs, outputs = ([_Lying(s, tuple([d.itemsize * n for n in steps]), d) for s, steps, d in a] for a in arrays)
        assert isinstance(chain, Chain)
        if math.prod(outputs[0].shape) * len(chain.links) >= _LEAST:
            call = _call(chain, inputs, outputs)
            found += [] if call is None else [call.program]
    begin_compiling(found)


def _computed(chain: Chain, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """Run the loop; False where there is none for these arrays, or it is not compiled (yet)."""
    call = _call(chain, inputs, outputs)
    return call is not None and call.run(inputs, outputs)


def _call(chain: Chain, inputs: Sequence[Array], outputs: Sequence[Array]) -> _Call | None:
    """Prepare a chain for these arrays, or take what was prepared before; None where no loop fits."""
    arrays = [*inputs, *outputs]
    key = (outputs[0].dtype, *[(array.shape, array.strides) for array in arrays])
    known: dict[Any, _Call | None] = chain.prepared
    if key in known:
        return known[key]
    if len(known) >= _MOST_CALLS:
        known.clear()
    made = known[key] = _prepare(chain, inputs, outputs)
    return made


def _prepare(chain: Chain, inputs: Sequence[Array], outputs: Sequence[Array]) -> _Call | None:
    order, ordered = in_order_of_use(chain)
    axes = axes_of([*[inputs[at] for at in order], *outputs])
    if axes is None or any(axes.still[len(inputs) :]):
        return None
    form = _form(ordered, outputs[0].dtype)
    return _Call(form, order, axes, numbers(ordered, form.uniforms))


def in_order_of_use(chain: Chain) -> tuple[list[int], Chain]:
    """A chain's inputs in the order in which its links read them first, and the chain that is given them so.

    Chains that differ in nothing else then have one form, which is compiled once.
    """
    used = dict.fromkeys([value for link in chain.links for value in link.inputs if value < chain.count])
    order = [*used, *[at for at in range(chain.count) if at not in used]]
    place = {value: at for at, value in enumerate(order)}
    links = [link._replace(inputs=tuple([place.get(value, value) for value in link.inputs])) for link in chain.links]
    made = Chain.of(chain.count, links, [place.get(value, value) for value in chain.results])
    assert isinstance(made, Chain)
    return order, made


def numbers(chain: Chain, uniforms: Sequence[Expr]) -> list[float]:
    """The scalars of a chain's calls: the values of these expressions."""
    return [evaluate(uniform, lambda name: _number(chain, name)) for uniform in uniforms]


def _number(chain: Chain, name: str) -> float:
    """The value of a parameter of one of the links."""
    number, attribute = name.split()
    value: float = getattr(chain.links[int(number)].op, attribute)
    return value


def form_of(chain: Chain) -> Hashable:
    """The key of a chain's formulas: equal for chains that one kernel can compute."""
    links = []
    for link in chain.links:
        variant = _formula(link.op).variant
        links.append((link.op.name, link.inputs, None if variant is None else variant(link.op)))
    return chain.count, tuple(links), chain.results


def _form(chain: Chain, dtype: DType) -> _Form:
    key = (dtype, form_of(chain))
    known = _forms.get(key)
    if known is None:
        real = real_of(dtype)
        assert real is not None
        known = _forms.setdefault(key, _Form(chain, real))
    return known
