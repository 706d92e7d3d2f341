"""The gradient of a graph, as more graph: reverse-mode differentiation over nodes.

Operators write their gradients in terms of registered operators; here those calls make nodes. Every shape
is known when a gradient graph is made, so a new node's shapes and dtypes are inferred as it is made.

A graph often has the same operator on the same shapes again and again: an unrolled network at each step. What its
gradient calls is noted the first time (:class:`_Form`), and done again without asking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from flowmx.errors import AutogradError
from flowmx.graph.node import Entry, Node, topological
from flowmx.ops.registry import calling
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Operator, Shape, Spec, lookup


class _Call(NamedTuple):
    """One operator that a gradient applies, by the numbers of the values that it reads."""

    op: Operator
    reads: tuple[int, ...]
    spec: Spec


class _Form(NamedTuple):
    """The calls of an operator's gradient, for inputs of some shapes and dtypes.

    Values are numbered: the operator's inputs, outputs, their gradients, then all that the calls make.
    """

    calls: list[_Call]
    results: list[int | None]


class _Noted:
    """The calls of a gradient while it runs for the first time."""

    def __init__(self, given: Sequence[Value]) -> None:
        self.calls: list[_Call] = []
        self.is_whole = True
        self._values = list(given)  # kept: their identities are the keys
        self._numbers = {id(value): number for number, value in enumerate(given)}

    def add(self, op: Operator, inputs: Sequence[Value], spec: Spec, made: Sequence[Value]) -> None:
        """Note a call; ``made`` are all its outputs."""
        reads = [self._numbers.get(id(value)) for value in inputs]
        self.is_whole &= None not in reads
        if self.is_whole:
            self.calls.append(_Call(op, tuple([number for number in reads if number is not None]), spec))
            for value in made:
                self._numbers[id(value)] = len(self._values)
                self._values.append(value)

    def form(self, results: Sequence[Value | None]) -> _Form | None:
        """The calls that were noted; None where something was done that no call shows."""
        found = [None if value is None else self._numbers.get(id(value), -1) for value in results]
        return _Form(self.calls, found) if self.is_whole and -1 not in found else None


class Builder:
    """Makes nodes for a gradient graph; what gradients get as ``F``."""

    repeats: ClassVar[bool] = True
    """True where an equal operator's gradient is not asked again."""

    def __init__(self, shapes: dict[Entry, Shape], dtypes: dict[Entry, DType]) -> None:
        self.shapes = shapes
        self.dtypes = dtypes
        self.source: Node | None = None
        self.needed: set[Node] = set()
        """The nodes through which the wanted gradients flow."""
        self._count = 0
        self._forms: dict[Any, _Form | None] = {}
        self._noted: _Noted | None = None

    def op(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Apply the operator of that name to values; returns a value, or a list of the visible outputs."""
        cls = lookup(name)
        inputs, parameters = calling.split(cls, args, kwargs, _is_value)
        op = cls.create(**parameters)
        return self.apply(op, calling.in_order(op, inputs))

    def apply(self, op: Operator, inputs: Sequence[Value]) -> Any:
        """Make a node."""
        entries = tuple([value.entry for value in inputs])
        spec = op.spec(tuple([self.shapes[e] for e in entries]), tuple([self.dtypes[e] for e in entries]))
        made = [Value(entry, self) for entry in self._node(op, entries, spec)]
        if self._noted is not None:
            self._noted.add(op, inputs, spec, made)
        values = made[: op.visible_outputs()]
        return values[0] if len(values) == 1 else values

    def _node(self, op: Operator, entries: tuple[Entry, ...], spec: Spec) -> list[Entry]:
        """The outputs of a new node."""
        source, shapes, dtypes = self.source, self.shapes, self.dtypes
        self._count += 1
        if source is None:
            node = Node(op, f"gradient{self._count}", entries)
        else:
            node = Node.beside(source, op, f"{source.name}_backward{self._count}", entries)
        made = []
        for index, shape in enumerate(spec.shapes):
            entry = Entry(node, index)
            shapes[entry], dtypes[entry] = shape, spec.dtypes[index]
            made.append(entry)
        return made

    def ones(self, head: Value) -> Value:
        """The gradient of an output, where none is given."""
        made: Value = self.op("ones_like", head)
        return made

    def differentiate(
        self, op: Operator, inputs: Sequence[Value], outputs: Sequence[Value], heads: Sequence[Value]
    ) -> Sequence[Value | None]:
        """The gradients of an operator's inputs."""
        given = [*inputs, *outputs, *heads]
        if self._noted is not None or not self.repeats or op.subgraphs or op.traits.detached:
            self._noted = None  # a gradient within a gradient: its values are others
            return op.gradient(self, inputs, outputs, heads)
        key = (
            op,
            tuple([(self.shapes[value.entry], self.dtypes[value.entry]) for value in given]),
            tuple([value.entry.node in self.needed for value in inputs]),
        )
        known = self._forms.get(key)
        if known is not None:
            return self._again(known, [value.entry for value in given])
        if key in self._forms:
            return op.gradient(self, inputs, outputs, heads)
        noted = self._noted = _Noted(given)
        try:
            results = op.gradient(self, inputs, outputs, heads)
            self._forms[key] = noted.form(results) if self._noted is noted else None
        finally:
            self._noted = None
        return results

    def _again(self, form: _Form, values: list[Entry]) -> list[Value | None]:
        """Do again what was noted, with these values."""
        for op, reads, spec in form.calls:
            values += self._node(op, tuple([values[number] for number in reads]), spec)
        return [None if number is None else Value(values[number], self) for number in form.results]

    def stype_of(self, entry: Entry) -> str:
        """The storage type of an entry."""
        return "default"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        lookup(name)

        def function(*args: Any, **kwargs: Any) -> Any:
            return self.op(name, *args, **kwargs)

        return function


class Value:
    """An entry under construction, with arithmetic that broadcasts, as arrays have."""

    __slots__ = ("builder", "entry")

    def __init__(self, entry: Entry, builder: Builder) -> None:
        self.entry = entry
        self.builder = builder

    @property
    def shape(self) -> Shape:
        """Its shape."""
        return self.builder.shapes[self.entry]

    @property
    def dtype(self) -> DType:
        """Its element type."""
        return self.builder.dtypes[self.entry]

    @property
    def stype(self) -> str:
        """Its storage type."""
        return self.builder.stype_of(self.entry)

    def __neg__(self) -> Any:
        return self.builder.op("negative", self)

    def reshape(self, shape: Shape) -> Any:
        """The value with another shape."""
        return self.builder.op("Reshape", self, shape=shape)

    __hash__ = object.__hash__


_ARITHMETIC = [
    ("add", "add", "_plus_scalar", "_plus_scalar"), ("sub", "sub", "_minus_scalar", "_rminus_scalar"),
    ("mul", "mul", "_mul_scalar", "_mul_scalar"), ("truediv", "div", "_div_scalar", "_rdiv_scalar"),
    ("mod", "mod", "_mod_scalar", "_rmod_scalar"), ("pow", "power", "_power_scalar", "_rpower_scalar"),
    ("eq", "equal", "_equal_scalar", ""), ("ne", "not_equal", "_not_equal_scalar", ""),
    ("gt", "greater", "_greater_scalar", ""), ("ge", "greater_equal", "_greater_equal_scalar", ""),
    ("lt", "lesser", "_lesser_scalar", ""), ("le", "lesser_equal", "_lesser_equal_scalar", ""),
]  # fmt: skip


def _method(array_op: str, scalar_op: str, swapped: bool) -> Callable[[Value, Any], Any]:
    def method(self: Value, other: Any) -> Any:
        if isinstance(other, Value):
            # The elementwise form where shapes agree: it may work in place, and is what gets fused.
            name = array_op if self.shape != other.shape else _ELEMENTWISE.get(array_op, array_op)
            return self.builder.op(name, *((other, self) if swapped else (self, other)))
        if isinstance(other, (int, float, np.generic)):
            return self.builder.op(scalar_op, self, scalar=float(other))
        return NotImplemented

    return method


_ELEMENTWISE = {f"broadcast_{name}": f"elemwise_{name}" for name in ("add", "sub", "mul", "div")}

for _python, _name, _scalar, _swapped in _ARITHMETIC:
    setattr(Value, f"__{_python}__", _method(f"broadcast_{_name}", _scalar, False))
    if _swapped:
        setattr(Value, f"__r{_python}__", _method(f"broadcast_{_name}", _swapped, True))


def _is_value(value: Any) -> bool:
    return isinstance(value, Value)


def gradient(
    heads: Sequence[Entry],
    head_gradients: Sequence[Entry | None],
    wanted: Iterable[Node],
    shapes: dict[Entry, Shape],
    dtypes: dict[Entry, DType],
    build: Builder | None = None,
) -> dict[Node, Entry]:
    """The gradient of the heads with respect to variables.

    Args:
        heads: the outputs to differentiate.
        head_gradients: the gradient of each (None: ones, which losses ignore).
        wanted: variables.
        shapes: of every entry of the graph; new entries are added.
        dtypes: likewise.
        build: what makes the nodes, if not a plain builder.

    Returns:
        an entry for each variable that the heads depend on through differentiable operators.

    Raises:
        AutogradError: an operator on the way has no gradient.
    """
    build = build or Builder(shapes, dtypes)
    nodes = _deepest_first(heads)
    needed: set[Node] = set(wanted)
    for node in nodes:
        if node.op is not None and not node.op.traits.no_gradient and any(e.node in needed for e in node.inputs):
            needed.add(node)
    build.needed = needed
    sums: dict[Entry, Value] = {}

    def add(entry: Entry, value: Value) -> None:
        before = sums.get(entry)
        sums[entry] = value if before is None else build.op("elemwise_add", before, value)

    for head, given in zip(heads, head_gradients, strict=True):
        if head.node in needed:
            build.source = head.node
            add(head, build.ones(Value(head, build)) if given is None else Value(given, build))
    for node in reversed(nodes):
        if node.op is None or node not in needed:
            continue
        build.source = node
        outputs = [Value(Entry(node, index), build) for index in range(node.outputs())]
        found = [sums.pop(Entry(node, index), None) for index in range(node.visible_outputs())]
        if all(each is None for each in found):
            continue
        grads = [build.op("zeros_like", outputs[index]) if each is None else each for index, each in enumerate(found)]
        inputs = [Value(entry, build) for entry in node.inputs]
        try:
            results = build.differentiate(node.op, inputs, outputs, grads)
        except NotImplementedError:
            raise AutogradError(
                f"node {node.name!r}: operator {node.op.name} has no gradient (made at {node.place()})"
            ) from None
        for entry, result in zip(node.inputs, results, strict=False):
            if result is not None and entry.node in needed:
                add(entry, result)
    return {entry.node: value.entry for entry, value in sums.items() if entry.node.is_variable}


def _deepest_first(heads: Sequence[Entry]) -> list[Node]:
    """Every node that the heads depend on, inputs before users, what needs the most steps before it first.

    So each node comes just before its first user, and in the reverse order each part of a gradient is added when it is
    there. Where weights are shared by the steps of an unrolled network, parts would else wait for the very last one.
    """
    nodes = topological(heads)
    depth: dict[Node, int] = {}
    for node in nodes:
        depth[node] = 1 + max([depth[entry.node] for entry in node.inputs], default=0)
    order: dict[Node, None] = {}
    for entry in heads:
        stack = [entry.node]
        while stack:
            missing = [each.node for each in reversed(stack[-1].inputs) if each.node not in order]
            if missing and stack[-1] not in order:
                stack += sorted(missing, key=depth.__getitem__)
            else:
                order[stack.pop()] = None
    return list(order)
