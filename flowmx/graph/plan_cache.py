"""A cache of plans on disk: for a large graph, reading a plan is faster than planning.

A plan is named by a digest of everything that determines it (:class:`Source`): the graph with its names, shapes and
dtypes, the options and settings, the machine and its libraries, and flowmx's source. A plan is stored only if all its
parts can be serialized and restored without change, so plans with loops, user code or several devices are not stored.
Reading a plan checks that its workspaces are large enough for the kernels, which would otherwise overrun them.
"""

from __future__ import annotations

import marshal
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from flowmx import disk_cache, settings
from flowmx.devices import Context, threads
from flowmx.graph.compiler import compile_graph, graph_of
from flowmx.graph.graph import Graph, Options
from flowmx.graph.node import Entry, Node, topological
from flowmx.graph.plan import Plan
from flowmx.graph.planning.arena_packing import Life, Packing
from flowmx.graph.planning.workspace import workspaces
from flowmx.graph.running.compile_ahead import compile_unplanned
from flowmx.ops import kernels
from flowmx.ops.compiled.chain import Chain, Link
from flowmx.ops.compiled.constant import Constant
from flowmx.ops.compiled.sliced import Sliced
from flowmx.ops.registry.dtypes import DType, as_dtype, name_of
from flowmx.ops.registry.operators import Operator, Shape, lookup

MIN_OPERATORS = 32
"""Minimum number of operators of a graph with a stored plan; planning smaller graphs is fast."""
_FILE_LIMIT = 64
"""Maximum number of plans in the folder; older ones are deleted."""
_SUFFIX = ".plan"
_FORMAT = 2

Shapes = Mapping[Entry, Shape]
DTypes = Mapping[Entry, DType]


class Unstorable(Exception):
    """A part of a plan cannot be serialized."""


def plan_of(
    entries: Sequence[Entry], variables: Sequence[Node], shapes: Shapes, dtypes: DTypes, train: bool, context: Context,
    options: Options, direct: Sequence[Node], strided: Sequence[Node] = (),
) -> Plan:  # fmt: skip
    """Return the plan of a graph on one device, from the cache if possible.

    Args:
        entries: the outputs.
        variables: the differentiated variables.
        shapes: the shapes of all entries that the outputs need.
        dtypes: their dtypes.
        train: whether it will run in training mode.
        context: the device.
        options: the compiler options.
        direct: the variables whose gradients may be written directly to the user's arrays.
        strided: the variables whose arrays are not dense in C order.

    Raises:
        AutogradError: an operator between a variable and an output has no gradient.
    """
    source = Source.of(entries, (variables, direct, strided), shapes, dtypes, train, context, options)
    plan = None if source is None else source.read()
    if plan is None:
        if source is not None:
            kernels.load_ahead(options.device_type)
        graph = graph_of(entries, variables, shapes, dtypes, train, context)
        begin = None if strided else compile_unplanned
        plan = compile_graph(graph, direct, strided, options, begin=begin)
        if source is not None:
            source.write(plan)
    return plan


class Source:
    """The graph and everything else that determines a plan.

    Args:
        nodes: the nodes before compilation, inputs before users.
        shapes, dtypes: the shapes and dtypes of their entries.
        context: the device.
        train: whether it will run in training mode.
        options: the compiler options.
        key: the digest of everything that determines the plan.
    """

    def __init__(
        self, nodes: list[Node], shapes: Shapes, dtypes: DTypes, context: Context, train: bool, options: Options,
        key: str,
    ) -> None:  # fmt: skip
        self._nodes = nodes
        self._shapes = shapes
        self._dtypes = dtypes
        self._context = context
        self._train = train
        self._options = options
        self._path = disk_cache.folder() / f"{key}{_SUFFIX}"

    @classmethod
    def of(
        cls, entries: Sequence[Entry], variable_groups: Sequence[Sequence[Node]], shapes: Shapes, dtypes: DTypes,
        train: bool, context: Context, options: Options,
    ) -> Source | None:  # fmt: skip
        """Return the source of a plan, or None if its plans are not stored.

        Args:
            entries: as for :func:`plan_of`.
            variable_groups: the variables of each kind (differentiated, direct, strided).
            shapes: as for :func:`plan_of`.
            dtypes: as for :func:`plan_of`.
            train: as for :func:`plan_of`.
            context: as for :func:`plan_of`.
            options: as for :func:`plan_of`.
        """
        config = settings.get()
        nodes = topological(entries)
        count = sum(node.op is not None for node in nodes)
        if not config.exec_plan_cache or context.device_type != "cpu" or count < MIN_OPERATORS:
            return None
        number_of = {node: position for position, node in enumerate(nodes)}
        operators: dict[Operator, int] = {}
        rows: list[object] = []
        try:
            for node in nodes:
                if node.op is None:
                    entry = Entry(node, 0)
                    rows.append((node.name, shapes[entry], name_of(dtypes[entry]), *node.attributes.items()))
                    continue
                if node.op not in operators:
                    operators[node.op] = len(operators)
                reads = [value for source, index in node.inputs for value in (number_of[source], index)]
                rows.append((node.name, operators[node.op], *reads, *node.attributes.items()))
            operator_rows = [_operator_row(op) for op in operators]
        except Unstorable:
            return None
        outputs = [(number_of[node], index) for node, index in entries]
        groups = [[number_of[node] for node in group] for group in variable_groups]
        settings_row = (_FORMAT, _identity(), str(context), train, groups, outputs, operator_rows)
        text = f"{settings_row!r}\n{config!r}\n{_option_values(options)!r}\n{threads.cores()}".encode()
        key = disk_cache.digest(
            text + marshal.dumps(rows, 2)
        ).hexdigest()  # later marshal versions depend on object identity
        return cls(nodes, shapes, dtypes, context, train, options, key)

    def write(self, plan: Plan) -> None:
        """Store a plan of this source, if it can be serialized."""
        try:
            content = marshal.dumps(_Writing(plan, self._nodes).content())
        except (Unstorable, ValueError):  # ValueError: too deeply nested for marshal
            return
        disk_cache.write(self._path, content)
        _make_room(self._path.parent)

    def read(self) -> Plan | None:
        """Return the stored plan, or None if no valid plan is stored."""
        content = disk_cache.read(self._path)
        if content is None:
            return None
        try:
            plan = _Reading(marshal.loads(content), self._nodes, self._context, self._train).plan()
        except (ValueError, TypeError, KeyError, IndexError, EOFError, AttributeError):
            return None
        graph: Any = plan.graph  # _Reading creates its mappings as dicts
        graph.shapes.update(self._shapes)
        graph.dtypes.update(self._dtypes)
        return plan if _has_room(plan, self._options) else None


def _option_values(options: Options) -> list[Any]:
    """Return the values of options, with sets sorted so that every process gets the same result."""
    values = [getattr(options, option.name) for option in fields(options)]
    return [sorted(map(repr, value)) if isinstance(value, frozenset) else value for value in values]


def _has_room(plan: Plan, options: Options) -> bool:
    """Return whether the plan's workspaces are large enough for the current kernels."""
    steps = plan.steps()
    needs = workspaces(plan, steps, options)
    fits = {steps[index] for index in needs} == plan.workspace.keys() and all(
        plan.lives[plan.workspace[steps[index]]].size >= nbytes for index, nbytes in needs.items()
    )
    return fits and all(_has_room(node.op.plan, options) for node in steps if isinstance(node.op, Sliced))


def _make_room(folder: Path) -> None:
    try:
        files = [(path.stat().st_mtime, path) for path in folder.glob(f"*{_SUFFIX}")]
        for _, path in sorted(files)[:-_FILE_LIMIT]:
            path.unlink(missing_ok=True)
    except OSError:
        pass  # another process deletes the same files, or the folder belongs to another user


# -- what determines plans besides the graph ------------------------------------------------------------------


@lru_cache(1)
def _identity() -> tuple[object, ...]:
    """Return the machine, the libraries of kernels, and a digest of flowmx's source."""
    llvm, onednn = find_spec("llvmlite"), kernels.onednn.library.library()
    return (
        sys.version, np.__version__, disk_cache.processor(),
        None if llvm is None else disk_cache.stamp(Path(llvm.origin or "")),
        None if onednn is None else (onednn.version(), onednn.isa), _sources(),
    )  # fmt: skip


def _sources() -> str:
    """Return a digest of the names, sizes and times of the source files that determine plans."""
    from flowmx import graph, ops

    stamps = [stamp for package in (graph, ops) for path in package.__path__ for stamp in _stamps(path)]
    return disk_cache.digest(repr(sorted(stamps)).encode()).hexdigest()


def _stamps(folder: str) -> Iterable[tuple[str, int, int]]:
    with os.scandir(folder) as items:
        for item in items:
            if item.is_dir():
                yield from _stamps(item.path)
            elif item.name.endswith((".py", ".so", ".pyd")):
                yield disk_cache.stamp(item)


# -- operators ---------------------------------------------------------------------------------------------------


def _operator_row(op: Operator) -> tuple[object, ...]:
    """Return an operator's name and parameters, from which its class creates an equal operator.

    Raises:
        Unstorable: the operator has other state.
    """
    cls = type(op)
    if not cls.__module__.startswith("flowmx.") or op.traits.detached or not op.is_defined_by_parameters():
        raise Unstorable
    return op.name, *[(name, _pack(getattr(op, name))) for name in cls.parameters]


def _pack(value: object) -> Any:
    """Convert a parameter's value to types that marshal supports; a dtype becomes a list with its name."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is tuple:
        return tuple([_pack(item) for item in value])
    if isinstance(value, np.dtype):
        return [name_of(value)]
    raise Unstorable


def _unpack(value: object) -> Any:
    if type(value) is tuple:
        return tuple([_unpack(item) for item in value])
    return as_dtype(value[0]) if type(value) is list else value


def _operator_of(row: tuple[Any, ...]) -> Operator:
    """Return the operator of a row."""
    cls = lookup(row[0])
    values = {name: _unpack(value) for name, value in row[1:]}
    defaults = {name: parameter.default for name, parameter in cls.parameters.items()}
    return cls.create(**{name: value for name, value in values.items() if repr(value) != repr(defaults[name])})


# -- writing and reading -------------------------------------------------------------------------------------------


class _Writing:
    """Serializes a plan to types that marshal supports.

    Nodes, operators, shapes and dtypes are numbered in order of appearance. An entry is the number of its node times
    the largest number of outputs of a node, plus its index.

    Args:
        plan: the plan.
        sources: the nodes of the source graph.
        variables: the additional variables of a subplan.
    """

    def __init__(self, plan: Plan, sources: Sequence[Node], variables: Iterable[Node] = ()) -> None:
        self._plan = plan
        graph = plan.graph
        if graph.groups or plan.transfers or plan.stages != ([], []) or len(plan.arenas) > 1:
            raise Unstorable
        self._source_nodes = sources
        self._sources = {node: number for number, node in enumerate(sources)}
        self._origins = {id(node.origin): number for number, node in enumerate(sources)}
        self._nodes: dict[Node, int] = {}
        self._ops: dict[Operator, int] = {}
        self._op_rows: list[tuple[Any, ...]] = []
        self._forms: dict[tuple[Shape, str], int] = {}
        heads = {*graph.heads, *variables}
        nodes = dict.fromkeys([*variables, *graph.heads, *graph.gradients, *graph.nodes(), *plan.once])
        nodes |= dict.fromkeys([*plan.forward, *plan.backward])
        self._stride = max([node.outputs() for node in nodes], default=1)
        self._rows = [self._row(node, heads) for node in nodes]

    def content(self) -> tuple[Any, ...]:
        """Return the serialized plan, as :class:`_Reading` expects it."""
        plan, graph, number = self._plan, self._plan.graph, self._nodes.__getitem__
        return (
            self._op_rows, list(self._forms), self._stride, self._rows,
            [number(node) for node in graph.heads],
            self._entries(graph.outputs), [(number(node), self._entry(e)) for node, e in graph.gradients.items()],
            graph.notes, [number(node) for node in graph.direct],
            [number(node) for node in plan.once], [number(node) for node in plan.forward],
            [number(node) for node in plan.backward],
            self._entries(plan.external), self._entries(plan.separate), self._entries(plan.channels_last),
            [(self._entry(view), self._entry(root)) for view, root in plan.root.items()],
            [(self._entry(entry), place) for entry, place in plan.place.items()],
            [(number(node), place) for node, place in plan.workspace.items()],
            [tuple(life) for life in plan.lives], plan.arena.offsets, plan.arena.size, list(plan.arenas.values()),
            plan.keeps_values,
        )  # fmt: skip

    def numbers(self, nodes: Iterable[Node]) -> list[int]:
        """Return the numbers of nodes."""
        return [self._nodes[node] for node in nodes]

    def _entry(self, entry: Entry) -> int:
        return self._nodes[entry.node] * self._stride + entry.index

    def _entries(self, entries: Iterable[Entry]) -> list[int]:
        return [self._entry(entry) for entry in entries]

    def _row(self, node: Node, heads: set[Node]) -> tuple[object, ...]:
        """Return a node's row. It begins with an operator's number, -1 and a source, or -2 for other variables."""
        graph, number = self._plan.graph, len(self._nodes)
        inputs = [self._entry(entry) for entry in node.inputs]
        self._nodes[node] = number
        if node.op is None and node in self._sources:
            return -1, self._sources[node]
        if node.op is None and node not in heads:
            raise Unstorable
        entries = [Entry(node, index) for index in range(node.outputs())]
        forms = [
            self._forms.setdefault((graph.shapes[entry], name_of(graph.dtypes[entry])), len(self._forms))
            for entry in entries
        ]
        origin = -1 if node.origin is None else self._origins.get(id(node.origin))
        if origin is None:
            raise Unstorable
        op = -2 if node.op is None else self._op(node.op)
        return op, node.name, inputs, forms, origin, tuple(node.attributes.items())

    def _op(self, op: Operator) -> int:
        """Return the number of an operator, adding a row on its first use."""
        number = self._ops.get(op)
        if number is None:
            if isinstance(op, Chain):
                links = [(self._op(link.op), link.inputs, link.name) for link in op.links]
                row: tuple[Any, ...] = (Chain.name, op.count, links, op.results)
            elif isinstance(op, Sliced):
                row = (Sliced.name, *self._write_sliced(op))
            elif isinstance(op, Constant):
                row = (Constant.name, name_of(op.value.dtype), op.value.shape, op.value.tobytes())
            else:
                row = _operator_row(op)
                copy = _operator_of(row)
                if _operator_row(copy) != row or copy.traits != op.traits:
                    raise Unstorable
            number = self._ops[op] = len(self._op_rows)
            self._op_rows.append(row)
        return number

    def _write_sliced(self, op: Sliced) -> tuple[object, ...]:
        variables = [entry.node for entry in op.variables]
        inner = _Writing(op.plan, self._source_nodes, dict.fromkeys([*variables, *op.plan.graph.gradients]))
        forms = [(shape, name_of(dtype)) for shape, dtype in op.forms]
        return inner.content(), inner.numbers(variables), op.rows, op.starts, forms, op.batch, op.channels_last


class _Reading:
    """Restores the plan that :class:`_Writing` serialized.

    Args:
        content: the serialized plan.
        sources: the nodes of the graph, in the same order.
        context: the device.
        train: whether it will run in training mode.
    """

    def __init__(self, content: Any, sources: Sequence[Node], context: Context, train: bool) -> None:
        op_rows, forms, self._stride, rows, *self._rest = content
        self._sources, self._context, self._train = sources, context, train
        self._ops: list[Operator] = []
        for row in op_rows:
            self._ops.append(self._operator(row))
        self._forms = [(shape, as_dtype(name)) for shape, name in forms]
        self._nodes: list[Node] = []
        self._shapes: dict[Entry, Shape] = {}
        self._dtypes: dict[Entry, DType] = {}
        for row in rows:
            self._nodes.append(sources[row[1]] if row[0] == -1 else self._node(*row))

    def plan(self) -> Plan:
        """Return the restored plan."""
        context, train = self._context, self._train
        (
            heads, outputs, gradients, notes, direct, once, forward, backward, external, separate, channels_last,
            root, place, workspace, lives, offsets, size, arenas, keeps_values,
        ) = self._rest  # fmt: skip
        nodes, entry = self._nodes, self._entry

        def nodes_of(numbers: Iterable[int]) -> list[Node]:
            return [nodes[number] for number in numbers]

        graph = Graph(
            tuple(map(entry, outputs)), {nodes[number]: entry(code) for number, code in gradients}, self._shapes,
            self._dtypes, train, tuple(nodes_of(heads)), {}, context, tuple(notes), frozenset(nodes_of(direct)),
        )  # fmt: skip
        return Plan(
            graph, nodes_of(forward), nodes_of(backward), frozenset(map(entry, external)), nodes_of(once),
            [entry(code) for code in separate], root={entry(view): entry(of) for view, of in root},
            place={entry(code): number for code, number in place},
            workspace={nodes[number]: index for number, index in workspace}, lives=[Life(*life) for life in lives],
            arena=Packing(offsets, size), arenas=dict.fromkeys([context], arenas[0]) if arenas else {},
            channels_last=frozenset(map(entry, channels_last)), keeps_values=keeps_values,
        )  # fmt: skip

    def _entry(self, code: int) -> Entry:
        node, index = divmod(code, self._stride)
        return Entry(self._nodes[node], index)

    def _node(
        self, op: int, name: str, inputs: list[int], forms: list[int], origin: int, attributes: tuple[Any, ...]
    ) -> Node:
        node = Node(
            None if op < 0 else self._ops[op], name, tuple([self._entry(code) for code in inputs]), dict(attributes),
            None, None if origin < 0 else self._sources[origin].origin,
        )  # fmt: skip
        for index, form in enumerate(forms):
            entry = Entry(node, index)
            self._shapes[entry], self._dtypes[entry] = self._forms[form]
        return node

    def _operator(self, row: Any) -> Operator:
        name, *rest = row
        if name == Chain.name:
            return self._chain(*rest)
        if name == Sliced.name:
            return self._read_sliced(*rest)
        return _constant(*rest) if name == Constant.name else _operator_of(row)

    def _chain(self, count: int, links: Sequence[Any], results: Sequence[int]) -> Operator:
        return Chain.of(count, [Link(self._ops[op], tuple(inputs), name) for op, inputs, name in links], results)

    def _read_sliced(
        self, content: object, variables: Sequence[int], rows: tuple[int, ...], starts: tuple[tuple[int, ...], ...],
        forms: Sequence[tuple[Shape, str]], batch: tuple[int, int], channels_last: tuple[bool, ...],
    ) -> Operator:  # fmt: skip
        inner = _Reading(content, self._sources, self._context, self._train)
        return Sliced.of(
            plan=inner.plan(), variables=tuple([Entry(inner.node(number), 0) for number in variables]), rows=rows,
            starts=starts, forms=tuple([(shape, as_dtype(name)) for shape, name in forms]), batch=batch,
            channels_last=channels_last,
        )  # fmt: skip

    def node(self, number: int) -> Node:
        """Return the node with a number."""
        return self._nodes[number]


def _constant(dtype: str, shape: Shape, content: bytes) -> Operator:
    return Constant(np.frombuffer(content, as_dtype(dtype)).reshape(shape))
