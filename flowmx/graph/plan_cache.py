"""Finished plans on disk: to plan a big graph takes longer than to read what was planned of it before.

A plan is named by a digest of all that it follows from (:class:`Source`): the graph with its names, shapes and dtypes,
the options and settings, the machine and its libraries, and flowmx's own source. A plan is kept only where every part
of it can be written down and is made again the same; loops, user code and graphs on several devices are not. What
kernels need to work in is asked for again when a plan is read: they write there.
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
from flowmx.graph.planning.memory import Life, Packing
from flowmx.graph.planning.workspace import workspaces
from flowmx.graph.running.ahead import compile_unplanned
from flowmx.ops import kernels
from flowmx.ops.compiled.chain import Chain, Link
from flowmx.ops.compiled.constant import Constant
from flowmx.ops.compiled.sliced import Sliced
from flowmx.ops.registry.dtypes import DType, as_dtype, name_of
from flowmx.ops.registry.operators import Operator, Shape, lookup

LEAST = 32
"""Operators from which on a graph's plan is kept: others are planned in no time."""
_MOST_FILES = 64
"""Plans in the folder; the oldest make room."""
_ENDING = ".plan"
_FORMAT = 2

Shapes = Mapping[Entry, Shape]
DTypes = Mapping[Entry, DType]


class Unstorable(Exception):
    """Raised where a part of a plan cannot be written down."""


def plan_of(
    entries: Sequence[Entry], wanted: Sequence[Node], shapes: Shapes, dtypes: DTypes, train: bool, context: Context,
    options: Options, straight: Sequence[Node], strided: Sequence[Node] = (),
) -> Plan:  # fmt: skip
    """The plan of a graph on one device: as it was kept, or made now.

    Args:
        entries: the outputs.
        wanted: the variables to differentiate by.
        shapes: of every entry that the outputs need.
        dtypes: likewise.
        train: whether it will run in training mode.
        context: the device.
        options: how.
        straight: the variables whose gradients may be written straight to the user's arrays.
        strided: the variables whose arrays do not lie densely in C order.

    Raises:
        AutogradError: an operator on the way has no gradient.
    """
    source = Source.of(entries, (wanted, straight, strided), shapes, dtypes, train, context, options)
    plan = None if source is None else source.read()
    if plan is None:
        if source is not None:
            kernels.load_ahead(options.device_type)
        graph = graph_of(entries, wanted, shapes, dtypes, train, context)
        begin = None if strided else compile_unplanned
        plan = compile_graph(graph, straight, strided, options, begin=begin)
        if source is not None:
            source.write(plan)
    return plan


class Source:
    """The graph and all else that a plan is made of.

    Args:
        nodes: of the graph before it is compiled, inputs before users.
        shapes, dtypes: of their entries.
        context: the device.
        train: whether it will run in training mode.
        options: those of the compiler.
        key: the digest of all that the plan follows from.
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
        self._path = disk_cache.folder() / f"{key}{_ENDING}"

    @classmethod
    def of(
        cls, entries: Sequence[Entry], chosen: Sequence[Sequence[Node]], shapes: Shapes, dtypes: DTypes, train: bool,
        context: Context, options: Options,
    ) -> Source | None:  # fmt: skip
        """The source of a plan; None where plans of it are not kept.

        Args:
            entries: as for :func:`plan_of`.
            chosen: the variables of each kind.
            shapes: as there.
            dtypes: likewise.
            train: likewise.
            context: likewise.
            options: likewise.
        """
        config = settings.get()
        nodes = topological(entries)
        count = sum(node.op is not None for node in nodes)
        if not config.exec_plan_cache or context.device_type != "cpu" or count < LEAST:
            return None
        at = {node: position for position, node in enumerate(nodes)}
        says: dict[Operator, int] = {}
        told: list[Any] = []
        try:
            for node in nodes:
                if node.op is None:
                    entry = Entry(node, 0)
                    told.append((node.name, shapes[entry], name_of(dtypes[entry]), *node.attributes.items()))
                    continue
                if node.op not in says:
                    says[node.op] = len(says)
                reads = [value for source, index in node.inputs for value in (at[source], index)]
                told.append((node.name, says[node.op], *reads, *node.attributes.items()))
            operators = [_told(op) for op in says]
        except Unstorable:
            return None
        ends = [(at[node], index) for node, index in entries]
        rest = (_FORMAT, _identity(), str(context), train, [[at[n] for n in each] for each in chosen], ends, operators)
        text = f"{rest!r}\n{config!r}\n{_said(options)!r}\n{threads.cores()}".encode()
        key = disk_cache.digest(text + marshal.dumps(told, 2)).hexdigest()  # later forms depend on object identity
        return cls(nodes, shapes, dtypes, context, train, options, key)

    def write(self, plan: Plan) -> None:
        """Keep a plan that was made of it, if it can be written down."""
        try:
            content = marshal.dumps(_Writing(plan, self._nodes).content())
        except (Unstorable, ValueError):  # or too deeply nested for marshal
            return
        disk_cache.write(self._path, content)
        _make_room(self._path.parent)

    def read(self) -> Plan | None:
        """The plan that was kept, or None where there is none that holds here and now."""
        content = disk_cache.read(self._path)
        if content is None:
            return None
        try:
            plan = _Reading(marshal.loads(content), self._nodes, self._context, self._train).plan()
        except (ValueError, TypeError, KeyError, IndexError, EOFError, AttributeError):
            return None
        plan.graph.shapes.update(self._shapes)  # type: ignore[attr-defined]  # made by _Reading
        plan.graph.dtypes.update(self._dtypes)  # type: ignore[attr-defined]
        return plan if _has_room(plan, self._options) else None


def _said(options: Options) -> list[Any]:
    """The values of options; sets in an order that is the same in every process."""
    values = [getattr(options, each.name) for each in fields(options)]
    return [sorted(map(repr, value)) if isinstance(value, frozenset) else value for value in values]


def _has_room(plan: Plan, options: Options) -> bool:
    """Tell whether kernels find as much room to work in as they want now."""
    steps = plan.steps()
    wanted = workspaces(plan, steps, options)
    fits = {steps[at] for at in wanted} == plan.workspace.keys() and all(
        plan.lives[plan.workspace[steps[at]]].size >= nbytes for at, nbytes in wanted.items()
    )
    return fits and all(_has_room(node.op.plan, options) for node in steps if isinstance(node.op, Sliced))


def _make_room(folder: Path) -> None:
    try:
        files = [(each.stat().st_mtime, each) for each in folder.glob(f"*{_ENDING}")]
        for _, each in sorted(files)[:-_MOST_FILES]:
            each.unlink(missing_ok=True)
    except OSError:
        pass  # another process does the same, or the folder is not ours


# -- what plans follow from, beside the graph -----------------------------------------------------------------


@lru_cache(1)
def _identity() -> tuple[Any, ...]:
    """The machine, the libraries that kernels come from, and flowmx's own source."""
    llvm, onednn = find_spec("llvmlite"), kernels.onednn.library.library()
    return (
        sys.version, np.__version__, disk_cache.processor(),
        None if llvm is None else disk_cache.stamp(Path(llvm.origin or "")),
        None if onednn is None else (onednn.version(), onednn.isa), _sources(),
    )  # fmt: skip


def _sources() -> str:
    """A digest of the names, sizes and times of flowmx's files, of which plans follow from nearly all."""
    from flowmx import graph, ops

    stamps = [stamp for package in (graph, ops) for path in package.__path__ for stamp in _stamps(path)]
    return disk_cache.digest(repr(sorted(stamps)).encode()).hexdigest()


def _stamps(folder: str) -> Iterable[tuple[str, int, int]]:
    with os.scandir(folder) as found:
        for each in found:
            if each.is_dir():
                yield from _stamps(each.path)
            elif each.name.endswith((".py", ".so", ".pyd")):
                yield disk_cache.stamp(each)


# -- operators ---------------------------------------------------------------------------------------------------


def _told(op: Operator) -> tuple[Any, ...]:
    """An operator's name and parameters; its class makes an equal one of them.

    Raises:
        Unstorable: it is more than that.
    """
    cls = type(op)
    if not cls.__module__.startswith("flowmx.") or op.traits.detached or not op.is_said_by_parameters():
        raise Unstorable
    return op.name, *[(name, _packed(getattr(op, name))) for name in cls.parameters]


def _packed(value: Any) -> Any:
    """A parameter's value in types that marshal knows: a dtype as a list with its name."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is tuple:
        return tuple([_packed(each) for each in value])
    if isinstance(value, np.dtype):
        return [name_of(value)]
    raise Unstorable


def _unpacked(value: Any) -> Any:
    if type(value) is tuple:
        return tuple([_unpacked(each) for each in value])
    return as_dtype(value[0]) if type(value) is list else value


def _made(told: tuple[Any, ...]) -> Operator:
    """The operator that was told of."""
    cls = lookup(told[0])
    values = {name: _unpacked(value) for name, value in told[1:]}
    defaults = {name: parameter.default for name, parameter in cls.parameters.items()}
    return cls.create(**{name: value for name, value in values.items() if repr(value) != repr(defaults[name])})


# -- writing and reading -------------------------------------------------------------------------------------------


class _Writing:
    """A plan in types that marshal knows.

    Nodes, operators, shapes and dtypes are numbered as they are met. An entry is the number of its node times the most
    outputs that a node has, plus its index.

    Args:
        plan: what to write.
        sources: the nodes of the graph that it was made of.
        variables: further ones of its own.
    """

    def __init__(self, plan: Plan, sources: Sequence[Node], variables: Iterable[Node] = ()) -> None:
        self._plan = plan
        graph = plan.graph
        if graph.groups or plan.travelling or plan.stages != ([], []) or len(plan.arenas) > 1:
            raise Unstorable
        self._given = sources
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
        """All of it, as :class:`_Reading` takes it."""
        plan, graph, number = self._plan, self._plan.graph, self._nodes.__getitem__
        return (
            self._op_rows, list(self._forms), self._stride, self._rows,
            [number(node) for node in graph.heads],
            self._entries(graph.outputs), [(number(node), self._entry(e)) for node, e in graph.gradients.items()],
            graph.notes, [number(node) for node in graph.straight],
            [number(node) for node in plan.once], [number(node) for node in plan.forward],
            [number(node) for node in plan.backward],
            self._entries(plan.external), self._entries(plan.kept), self._entries(plan.channels_last),
            [(self._entry(view), self._entry(root)) for view, root in plan.root.items()],
            [(self._entry(entry), place) for entry, place in plan.place.items()],
            [(number(node), place) for node, place in plan.workspace.items()],
            [tuple(life) for life in plan.lives], plan.arena.offsets, plan.arena.size, list(plan.arenas.values()),
            plan.keeps_values,
        )  # fmt: skip

    def numbers(self, nodes: Iterable[Node]) -> list[int]:
        """The numbers of some nodes."""
        return [self._nodes[node] for node in nodes]

    def _entry(self, entry: Entry) -> int:
        return self._nodes[entry.node] * self._stride + entry.index

    def _entries(self, entries: Iterable[Entry]) -> list[int]:
        return [self._entry(entry) for entry in entries]

    def _row(self, node: Node, heads: set[Node]) -> tuple[Any, ...]:
        """A node: its operator, or -1 and the number of the source, or -2 for another variable; then the rest."""
        graph, made = self._plan.graph, len(self._nodes)
        inputs = [self._entry(entry) for entry in node.inputs]
        self._nodes[node] = made
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
        """The number of an operator, which is written down where it is met first."""
        known = self._ops.get(op)
        if known is None:
            if isinstance(op, Chain):
                links = [(self._op(link.op), link.inputs, link.name) for link in op.links]
                row: tuple[Any, ...] = (Chain.name, op.count, links, op.results)
            elif isinstance(op, Sliced):
                row = (Sliced.name, *self._sliced(op))
            elif isinstance(op, Constant):
                row = (Constant.name, name_of(op.value.dtype), op.value.shape, op.value.tobytes())
            else:
                row = _told(op)
                made = _made(row)
                if _told(made) != row or made.traits != op.traits:
                    raise Unstorable
            known = self._ops[op] = len(self._op_rows)
            self._op_rows.append(row)
        return known

    def _sliced(self, op: Sliced) -> tuple[Any, ...]:
        variables = [entry.node for entry in op.variables]
        inner = _Writing(op.plan, self._given, dict.fromkeys([*variables, *op.plan.graph.gradients]))
        forms = [(shape, name_of(dtype)) for shape, dtype in op.forms]
        return inner.content(), inner.numbers(variables), op.rows, op.starts, forms, op.batch, op.laid


class _Reading:
    """The plan of what :class:`_Writing` wrote.

    Args:
        content: what it wrote.
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
        """The whole."""
        context, train = self._context, self._train
        (
            heads, outputs, gradients, notes, straight, once, forward, backward, external, kept, channels_last, root,
            place, workspace, lives, offsets, size, arenas, keeps_values,
        ) = self._rest  # fmt: skip
        nodes, entry = self._nodes, self._entry

        def listed(numbers: Iterable[int]) -> list[Node]:
            return [nodes[number] for number in numbers]

        graph = Graph(
            tuple(map(entry, outputs)), {nodes[number]: entry(code) for number, code in gradients}, self._shapes,
            self._dtypes, train, tuple(listed(heads)), {}, context, tuple(notes), frozenset(listed(straight)),
        )  # fmt: skip
        return Plan(
            graph, listed(forward), listed(backward), frozenset(map(entry, external)), listed(once),
            [entry(code) for code in kept], root={entry(view): entry(of) for view, of in root},
            place={entry(code): number for code, number in place},
            workspace={nodes[number]: at for number, at in workspace}, lives=[Life(*each) for each in lives],
            arena=Packing(offsets, size), arenas=dict.fromkeys([context], arenas[0]) if arenas else {},
            channels_last=frozenset(map(entry, channels_last)), keeps_values=keeps_values,
        )  # fmt: skip

    def _entry(self, code: int) -> Entry:
        node, index = divmod(code, self._stride)
        return Entry(self._nodes[node], index)

    def _node(
        self, op: int, name: str, inputs: list[int], forms: list[int], origin: int, attributes: tuple[Any, ...]
    ) -> Node:
        made = Node(
            None if op < 0 else self._ops[op], name, tuple([self._entry(code) for code in inputs]), dict(attributes),
            None, None if origin < 0 else self._sources[origin].origin,
        )  # fmt: skip
        for index, form in enumerate(forms):
            entry = Entry(made, index)
            self._shapes[entry], self._dtypes[entry] = self._forms[form]
        return made

    def _operator(self, row: Any) -> Operator:
        name, *rest = row
        if name == Chain.name:
            return self._chain(*rest)
        if name == Sliced.name:
            return self._sliced(*rest)
        return _constant(*rest) if name == Constant.name else _made(row)

    def _chain(self, count: int, links: Sequence[Any], results: Sequence[int]) -> Operator:
        return Chain.of(count, [Link(self._ops[op], tuple(inputs), name) for op, inputs, name in links], results)

    def _sliced(
        self, content: Any, variables: Sequence[int], rows: tuple[int, ...], starts: tuple[tuple[int, ...], ...],
        forms: Sequence[tuple[Shape, str]], batch: tuple[int, int], laid: tuple[bool, ...],
    ) -> Operator:  # fmt: skip
        inner = _Reading(content, self._sources, self._context, self._train)
        return Sliced.of(
            plan=inner.plan(), variables=tuple([Entry(inner.node(number), 0) for number in variables]), rows=rows,
            starts=starts, forms=tuple([(shape, as_dtype(name)) for shape, name in forms]), batch=batch, laid=laid,
        )  # fmt: skip

    def node(self, number: int) -> Node:
        """The node of a number."""
        return self._nodes[number]


def _constant(dtype: str, shape: Shape, content: bytes) -> Operator:
    return Constant(np.frombuffer(content, as_dtype(dtype)).reshape(shape))
