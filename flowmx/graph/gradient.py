"""Gradient graphs: reverse-mode differentiation over nodes.

Operators express their gradients as calls of registered operators; here those calls create nodes. The shapes and dtypes
of a new node are inferred when it is created.

A graph often repeats an operator on the same shapes, for example in each step of an unrolled network. The first time,
the calls of the gradient are recorded (:class:`_Form`); they are then replayed without running the gradient function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from flowmx.errors import AutogradError
from flowmx.graph.node import Entry, Node, topological
from flowmx.ops.registry import calling
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Operator, Shape, lookup
from flowmx.ops.registry.spec import Spec
from flowmx.ops.registry.tensors import Functions, Tensors


class _Call(NamedTuple):
    """An operator call of a gradient, with the numbers of the values that it reads."""

    op: Operator
    reads: tuple[int, ...]
    spec: Spec


class _Form(NamedTuple):
    """The calls of an operator's gradient, for inputs of certain shapes and dtypes.

    Values are numbered: the operator's inputs, its outputs, their gradients, then the outputs of each call.
    """

    calls: list[_Call]
    results: list[int | None]


class _Recording:
    """Records the calls of a gradient while it runs for the first time."""

    def __init__(self, values: Sequence[Value]) -> None:
        self.calls: list[_Call] = []
        self.is_complete = True
        self._values = list(values)  # keeps them alive: their identities are keys
        self._numbers = {id(value): number for number, value in enumerate(values)}

    def add(self, op: Operator, inputs: Sequence[Value], spec: Spec, outputs: Sequence[Value]) -> None:
        """Record a call with all its outputs."""
        reads = [self._numbers.get(id(value)) for value in inputs]
        self.is_complete &= None not in reads
        if self.is_complete:
            self.calls.append(_Call(op, tuple([number for number in reads if number is not None]), spec))
            for value in outputs:
                self._numbers[id(value)] = len(self._values)
                self._values.append(value)

    def form(self, results: Sequence[Value | None]) -> _Form | None:
        """Return the recorded calls, or None if the gradient used values from elsewhere."""
        numbers = [None if value is None else self._numbers.get(id(value), -1) for value in results]
        return _Form(self.calls, numbers) if self.is_complete and -1 not in numbers else None


class Builder:
    """Creates the nodes of a gradient graph; gradient functions receive it as ``F``."""

    repeats: ClassVar[bool] = True
    """Whether the gradient of an equal operator may be replayed."""

    def __init__(self, shapes: dict[Entry, Shape], dtypes: dict[Entry, DType]) -> None:
        self.shapes = shapes
        self.dtypes = dtypes
        self.source: Node | None = None
        self.needed: set[Node] = set()
        """The nodes on a path to a differentiated variable."""
        self._count = 0
        self._forms: dict[Any, _Form | None] = {}
        self._recording: _Recording | None = None

    def op(self, name: str, /, *args: object, **kwargs: object) -> Any:
        """Apply an operator to values; return a value, or a list of the visible outputs."""
        cls = lookup(name)
        inputs, parameters = calling.split(cls, args, kwargs, _is_value)
        op = cls.create(**parameters)
        return self.apply(op, calling.in_order(op, inputs))

    def apply(self, op: Operator, inputs: Sequence[Value]) -> Any:
        """Create a node; return its visible outputs."""
        entries = tuple([value.entry for value in inputs])
        spec = op.spec(tuple([self.shapes[e] for e in entries]), tuple([self.dtypes[e] for e in entries]))
        outputs = [Value(entry, self) for entry in self._node(op, entries, spec)]
        if self._recording is not None:
            self._recording.add(op, inputs, spec, outputs)
        values = outputs[: op.visible_outputs()]
        return values[0] if len(values) == 1 else values

    def _node(self, op: Operator, entries: tuple[Entry, ...], spec: Spec) -> list[Entry]:
        """Create a node and return its outputs."""
        source, shapes, dtypes = self.source, self.shapes, self.dtypes
        self._count += 1
        if source is None:
            node = Node(op, f"gradient{self._count}", entries)
        else:
            node = Node.derive(source, op, f"{source.name}_backward{self._count}", entries)
        outputs = []
        for index, shape in enumerate(spec.shapes):
            entry = Entry(node, index)
            shapes[entry], dtypes[entry] = shape, spec.dtypes[index]
            outputs.append(entry)
        return outputs

    def ones(self, head: Value) -> Value:
        """Return the default gradient of an output."""
        value: Value = self.op("ones_like", head)
        return value

    def differentiate(
        self, op: Operator, inputs: Sequence[Value], outputs: Sequence[Value], heads: Sequence[Value]
    ) -> Sequence[Value | None]:
        """Return the gradients of an operator's inputs."""
        values = [*inputs, *outputs, *heads]
        if self._recording is not None or not self.repeats or op.subgraphs or op.traits.detached:
            self._recording = None  # nested gradients have other values
            return call_gradient(self, op, inputs, outputs, heads)
        key = (
            op,
            tuple([(self.shapes[value.entry], self.dtypes[value.entry]) for value in values]),
            tuple([value.entry.node in self.needed for value in inputs]),
        )
        form = self._forms.get(key)
        if form is not None:
            return self._replay(form, [value.entry for value in values])
        if key in self._forms:
            return call_gradient(self, op, inputs, outputs, heads)
        recording = self._recording = _Recording(values)
        try:
            results = call_gradient(self, op, inputs, outputs, heads)
            self._forms[key] = recording.form(results) if self._recording is recording else None
        finally:
            self._recording = None
        return results

    def _replay(self, form: _Form, values: list[Entry]) -> list[Value | None]:
        """Create the nodes of recorded calls for these values."""
        for op, reads, spec in form.calls:
            values += self._node(op, tuple([values[number] for number in reads]), spec)
        return [None if number is None else Value(values[number], self) for number in form.results]

    def stype_of(self, entry: Entry) -> str:
        """Return the storage type of an entry."""
        return "default"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        lookup(name)

        def function(*args: object, **kwargs: object) -> Any:
            return self.op(name, *args, **kwargs)

        return function


class Value:
    """An entry under construction, with the broadcasting arithmetic of arrays."""

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
        """Return the value with a different shape."""
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
    def method(self: Value, other: object) -> Any:
        if isinstance(other, Value):
            # For equal shapes use the elementwise form, which may work in place and can be fused.
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


def call_gradient(
    build: Builder, op: Operator, inputs: Sequence[Value], outputs: Sequence[Value], heads: Sequence[Value]
) -> Sequence[Value | None]:
    """Call an operator's gradient with values, which have the arithmetic of tensors."""
    arguments = (cast("Tensors", inputs), cast("Tensors", outputs), cast("Tensors", heads))
    return cast("Sequence[Value | None]", op.gradient(cast("Functions", build), *arguments))


def _is_value(value: object) -> bool:
    return isinstance(value, Value)


def gradient(
    heads: Sequence[Entry],
    head_gradients: Sequence[Entry | None],
    variables: Iterable[Node],
    shapes: dict[Entry, Shape],
    dtypes: dict[Entry, DType],
    build: Builder | None = None,
) -> dict[Node, Entry]:
    """Return the gradients of the heads with respect to variables.

    Args:
        heads: the outputs to differentiate.
        head_gradients: the gradient of each head (None: ones, which losses ignore).
        variables: the variables.
        shapes: the shapes of all entries of the graph; those of new entries are added.
        dtypes: the dtypes of all entries of the graph; those of new entries are added.
        build: creates the nodes (default: a new builder).

    Returns:
        an entry for each variable that the heads depend on through differentiable operators.

    Raises:
        AutogradError: an operator between a variable and a head has no gradient.
    """
    build = build or Builder(shapes, dtypes)
    nodes = _deepest_first(heads)
    needed = build.needed = _on_gradient_paths(nodes, variables)
    sums: dict[Entry, Value] = {}

    def add(entry: Entry, value: Value) -> None:
        total = sums.get(entry)
        sums[entry] = value if total is None else build.op("elemwise_add", total, value)

    for head, head_gradient in zip(heads, head_gradients, strict=True):
        if head.node in needed:
            build.source = head.node
            add(head, build.ones(Value(head, build)) if head_gradient is None else Value(head_gradient, build))
    for node in reversed(nodes):
        if node.op is None or node not in needed:
            continue
        build.source = node
        outputs = [Value(Entry(node, index), build) for index in range(node.outputs())]
        head_terms = [sums.pop(Entry(node, index), None) for index in range(node.visible_outputs())]
        if all(term is None for term in head_terms):
            continue
        grads = [
            build.op("zeros_like", outputs[index]) if term is None else term for index, term in enumerate(head_terms)
        ]
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


def _on_gradient_paths(nodes: Sequence[Node], variables: Iterable[Node]) -> set[Node]:
    """Return the variables, and the operators through which gradients flow to them."""
    needed = set(variables)
    for node in nodes:
        if node.op is not None and not node.op.traits.no_gradient and any(e.node in needed for e in node.inputs):
            needed.add(node)
    return needed


def _deepest_first(heads: Sequence[Entry]) -> list[Node]:
    """Return every node that the heads depend on, inputs before users, deepest inputs first.

    A node then comes just before its first user. So in reverse order, terms of a gradient are added as soon as they are
    available. Otherwise, the terms of a weight that the steps of an unrolled network share would all wait for the last
    step.
    """
    nodes = topological(heads)
    depth: dict[Node, int] = {}
    for node in nodes:
        depth[node] = 1 + max([depth[entry.node] for entry in node.inputs], default=0)
    order: dict[Node, None] = {}
    for entry in heads:
        stack = [entry.node]
        while stack:
            missing = [entry.node for entry in reversed(stack[-1].inputs) if entry.node not in order]
            if missing and stack[-1] not in order:
                stack += sorted(missing, key=depth.__getitem__)
            else:
                order[stack.pop()] = None
    return list(order)
