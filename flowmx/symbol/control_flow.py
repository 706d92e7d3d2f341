"""Loops and branches of symbols: the user's functions are called once, and become subgraphs of one operator.

What a function uses of the symbols around it becomes an input of the operator: its *free variables*. They are
told from what the function itself makes by the attribute ``__subgraph_name__``, as in MXNet's files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowmx import attribute, name
from flowmx.attribute import AttrScope
from flowmx.engine import capture
from flowmx.errors import ArgumentError
from flowmx.graph.nesting import Format, flatten, regroup
from flowmx.graph.node import Entry, Node, topological
from flowmx.graph.subgraph import Body
from flowmx.ops.registry.operators import Operator, lookup
from flowmx.symbol import functions as F
from flowmx.symbol.symbol import Symbol, Variable

_SCOPE = "__subgraph_name__"


class _Traced:
    """A function of the user's, called on variables, as a graph.

    Attributes:
        result: what it returned.
        body: the graph of its outputs.
        sources: for each input of the body that is a free variable, by name, what it stands for outside.
    """

    def __init__(self, label: str, called: Callable[[], tuple[Any, list[Symbol]]]) -> None:
        outer = attribute.current().get(_SCOPE)
        label = f"{outer}${label}" if outer else label
        counts = AttrScope._subgraph_names
        number = counts[label]
        counts[label] = number + 1
        self._name = f"{label}{number}"
        with AttrScope(**{_SCOPE: self._name}):
            self.result, outputs = called()
            entries = self._outputs([each._entries[0] for each in outputs])
        self.sources: dict[str, Entry] = {}
        self.body = Body(self._cut(entries))
        names = [node.name for node in self.body.variables]
        if len(set(names)) != len(names):
            twice = sorted({each for each in names if names.count(each) > 1})
            raise ValueError(f"{label}: several symbols used inside are called {', '.join(twice)}; name them apart")

    def _inside(self, node: Node) -> bool:
        return node.attributes.get(_SCOPE) == self._name

    def _outputs(self, entries: Sequence[Entry]) -> list[Entry]:
        """Outputs that are no variables, come from inside, and are all different."""
        taken: set[Entry] = set()
        made = []
        for entry in entries:
            if entry.node.is_variable or not self._inside(entry.node) or entry in taken:
                entry = F.op("identity", Symbol([entry]))._entries[0]
            taken.add(entry)
            made.append(entry)
        return made

    def _cut(self, entries: Sequence[Entry]) -> list[Entry]:
        """The graph with a variable in the place of everything that comes from outside."""
        moved: dict[Entry, Entry] = {}

        def move(entry: Entry) -> Entry:
            if not self._inside(entry.node):
                found = moved.get(entry)
                if found is None:
                    label = entry.node.output_name(entry.index)
                    found = moved[entry] = Entry(Node(None, label, origin=entry.node.origin), 0)
                    self.sources.setdefault(label, entry)
                return found
            if entry.node.is_variable:
                self.sources.setdefault(entry.node.name, entry)
            return moved.get(entry, entry)

        for node in self._own_nodes(entries):
            if node.op is None:
                continue
            inputs = tuple(move(each) for each in node.inputs)
            if inputs != node.inputs:
                made = Node(node.op, node.name, inputs, node.attributes, node.given, node.origin, node.versions)
                moved.update((Entry(node, i), Entry(made, i)) for i in range(node.outputs()))
        return [move(entry) for entry in entries]

    def _own_nodes(self, entries: Sequence[Entry]) -> list[Node]:
        return [node for node in topological(entries) if self._inside(node)]

    def names(self) -> list[str]:
        """Names of the body's inputs."""
        return [node.name for node in self.body.variables]


def _inside_name(symbol: Symbol) -> str:
    return f"{symbol.name}-{symbol._entries[0].index}"


def _placeholder(symbol: Symbol) -> Symbol:
    return Variable(_inside_name(symbol))


def _given(symbols: Sequence[Symbol]) -> dict[str, Entry]:
    """The entries that the placeholders of these symbols stand for, by name."""
    table = {_inside_name(each): each._entries[0] for each in symbols}
    if len(table) != len(symbols):
        raise ValueError(f"two of the symbols {', '.join(map(_inside_name, symbols))} have the same name")
    return table


def _compose(
    operator: str, traced: Sequence[_Traced], inputs: Sequence[Entry], parameters: Mapping[str, Any]
) -> Symbol:
    """The node of a loop or branch."""
    cls: type[Operator] = lookup(operator)
    given = {key: str(value) for key, value in parameters.items()}
    given["num_args"] = str(len(inputs) + len(traced))
    op = cls.create(**given, subgraphs=tuple(each.body for each in traced))
    label = name.current().get(None, operator)
    node = Node(op, label, tuple(inputs), attribute.kept(attribute.current()), given, capture(3))
    return Symbol([Entry(node, index) for index in range(op.visible_outputs())])


def _union(traced: Sequence[_Traced], given: Mapping[str, Entry]) -> tuple[list[Entry], list[list[int]]]:
    """All inputs of several bodies, each once, and for each body where its own are among them."""
    inputs: dict[Entry, int] = {}
    locations = []
    for each in traced:
        entries = [given.get(label) or each.sources[label] for label in each.names()]
        locations.append([inputs.setdefault(entry, len(inputs)) for entry in entries])
    return list(inputs), locations


def _nested(symbol: Symbol, form: Format) -> Any:
    return regroup(list(symbol), form)


def foreach(body: Callable[..., Any], data: Any, init_states: Any, name: str = "foreach") -> tuple[Any, Any]:
    """Loop over the slices of the data along the first axis.

    Args:
        body: called as ``body(slice, states)``; returns the outputs of one iteration and the new states.
        data: a symbol, or a (nested) list of them.
        init_states: the first states, likewise.
        name: what the subgraph is called.

    Returns:
        the outputs of all iterations, stacked, and the last states, nested as the body returned them.

    Raises:
        TypeError: something is no symbol.
        ValueError: the states are nested otherwise than at first, or some data or state is not used.
    """
    slices, data_form = flatten(data, Symbol, "foreach: data")
    states, state_form = flatten(init_states, Symbol, "foreach: init_states")

    def called() -> tuple[Format, list[Symbol]]:
        inside, before = map(_placeholder, slices), map(_placeholder, states)
        outputs, after = body(regroup(list(inside), data_form), regroup(list(before), state_form))
        flat, form = flatten(outputs, Symbol, "foreach: the body's outputs")
        flat_after, after_form = flatten(after, Symbol, "foreach: the body's states")
        if after_form != state_form:
            raise ValueError(f"foreach: the body returned states nested as {after_form}, they began as {state_form}")
        return form, [*flat, *flat_after]

    traced = _Traced(name, called)
    given = _given([*slices, *states])
    names = traced.names()
    for label in given:
        if label not in names:
            raise ArgumentError(f"foreach: the body must use all data and states, and does not use {label!r}")
    rest = [label for label in names if label not in given]
    outputs = len(traced.body.entries)
    stacked = outputs - len(states)
    made = _compose(
        "_foreach", [traced], [*given.values(), *(traced.sources[label] for label in rest)],
        {
            "num_outputs": outputs,
            "num_out_data": stacked,
            "in_data_locs": [names.index(label) for label in list(given)[: len(slices)]],
            "in_state_locs": [names.index(label) for label in list(given)[len(slices) :]],
            "remain_locs": [names.index(label) for label in rest],
        },
    )  # fmt: skip
    return _nested(made[:stacked], traced.result), _nested(made[stacked:], state_form)


def while_loop(
    cond: Callable[..., Any],
    func: Callable[..., Any],
    loop_vars: Any,
    max_iterations: int | None = None,
    name: str = "while_loop",
) -> tuple[Any, Any]:
    """Loop as long as a condition holds.

    Args:
        cond: called as ``cond(*loop_vars)``; returns a symbol of one element.
        func: called as ``func(*loop_vars)``; returns the outputs of one iteration and the new loop variables.
        loop_vars: the first loop variables, a (nested) list of symbols.
        max_iterations: the most iterations.
        name: what the subgraphs are called.

    Returns:
        the outputs, stacked along a first axis of length ``max_iterations`` (0 where nothing was computed), and
        the last loop variables.

    Raises:
        TypeError: something is no symbol.
        ValueError: ``max_iterations`` is missing, there are no loop variables, one is not used, or the function
            returns another number of them.
    """
    if max_iterations is None:
        raise ValueError("while_loop: max_iterations must be given")
    single = isinstance(loop_vars, Symbol)
    variables, form = flatten([loop_vars] if single else loop_vars, Symbol, "while_loop: loop_vars")
    if not variables:
        raise ValueError("while_loop: loop_vars is empty, expected at least one")

    def arguments() -> Any:
        return regroup([_placeholder(each) for each in variables], form)

    def condition() -> tuple[None, list[Symbol]]:
        return None, flatten(cond(*arguments()), Symbol, "while_loop: the condition")[0]

    def step() -> tuple[Format, list[Symbol]]:
        outputs, after = func(*arguments())
        flat, flat_form = flatten([] if outputs is None else outputs, Symbol, "while_loop: the function's outputs")
        flat_after = flatten([] if after is None else after, Symbol, "while_loop: the function's loop variables")[0]
        if len(flat_after) != len(variables):
            raise ValueError(
                f"while_loop: the function returned {len(flat_after)} loop variables, expected {len(variables)}"
            )
        return flat_form, [*flat, *flat_after]

    traced = [_Traced(f"{name}_cond", condition), _Traced(f"{name}_func", step)]
    given = _given(variables)
    names = traced[1].names()
    for label in given:
        if label not in names:
            raise ValueError(f"while_loop: the function must use all loop variables, and does not use {label!r}")
    inputs, (cond_locs, func_locs) = _union(traced, given)
    outputs = len(traced[1].body.entries)
    stacked = outputs - len(variables)
    made = _compose(
        "_while_loop", traced, inputs,
        {
            "max_iterations": int(max_iterations),
            "num_outputs": outputs,
            "num_out_data": stacked,
            "cond_input_locs": cond_locs,
            "func_input_locs": func_locs,
            "func_var_locs": [names.index(label) for label in given],
        },
    )  # fmt: skip
    last = _nested(made[stacked:], form)
    return _nested(made[:stacked], traced[1].result), last[0] if single else last


def cond(
    pred: Symbol, then_func: Callable[[], Any], else_func: Callable[[], Any], name: str = "cond"
) -> Any:  # fmt: skip
    """One of two branches.

    Args:
        pred: a symbol of one element.
        then_func: called without arguments; what it returns is computed where ``pred`` is not 0.
        else_func: likewise for 0; must return as many symbols, of the same shapes.
        name: what the subgraphs are called.

    Returns:
        the outputs, nested as ``then_func`` returned them.

    Raises:
        TypeError: something is no symbol.
        ValueError: the branches return different numbers of symbols, or ``pred`` has several outputs.
    """

    def branch(function: Callable[[], Any]) -> Callable[[], tuple[Format, list[Symbol]]]:
        def called() -> tuple[Format, list[Symbol]]:
            flat, form = flatten(function(), Symbol, "cond: the branch's outputs")
            return form, flat

        return called

    parts = {"pred": lambda: pred, "then": then_func, "else": else_func}
    traced = [_Traced(f"{name}_{part}", branch(function)) for part, function in parts.items()]
    asked, one, other = (len(each.body.entries) for each in traced)
    if asked != 1:
        raise ValueError(f"cond: pred has {asked} outputs, expected 1")
    if one != other:
        raise ValueError(f"cond: then_func returned {one} symbols and else_func {other}, expected as many")
    inputs, locations = _union(traced, {})
    made = _compose(
        "_cond", traced, inputs,
        {
            "cond_input_locs": locations[0],
            "then_input_locs": locations[1],
            "else_input_locs": locations[2],
            "num_outputs": one,
        },
    )  # fmt: skip
    return _nested(made, traced[1].result)
