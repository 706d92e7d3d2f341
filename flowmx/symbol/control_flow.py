"""Loops and branches of symbols: each user function is called once, and becomes a subgraph of an operator.

Symbols from outside that a function uses, its *free variables*, become inputs of the operator. The attribute
``__subgraph_name__`` distinguishes them from symbols that the function creates, as in MXNet's files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

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


class _TracedBody:
    """A graph traced by calling a user's function on variables.

    Attributes:
        result: the function's return value.
        body: the graph of its outputs.
        sources: the outside entries of the body's free variables, by name.
    """

    def __init__(self, label: str, function: Callable[[], tuple[Any, list[Symbol]]]) -> None:
        outer = attribute.current().get(_SCOPE)
        label = f"{outer}${label}" if outer else label
        counts = AttrScope._subgraph_names
        number = counts[label]
        counts[label] = number + 1
        self._name = f"{label}{number}"
        with AttrScope(**{_SCOPE: self._name}):
            self.result, outputs = function()
            entries = self._outputs([output.entries[0] for output in outputs])
        self.sources: dict[str, Entry] = {}
        self.body = Body(self._cut(entries))
        names = [node.name for node in self.body.variables]
        if len(set(names)) != len(names):
            duplicates = sorted({label for label in names if names.count(label) > 1})
            raise ValueError(f"{label}: several symbols used inside are called {', '.join(duplicates)}; rename them")

    def _belongs_to_body(self, node: Node) -> bool:
        return node.attributes.get(_SCOPE) == self._name

    def _outputs(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return distinct inner outputs that are not variables, adding identities if necessary."""
        result: list[Entry] = []
        for entry in entries:
            if entry.node.is_variable or not self._belongs_to_body(entry.node) or entry in result:
                entry = F.op("identity", Symbol([entry])).entries[0]
            result.append(entry)
        return result

    def _cut(self, entries: Sequence[Entry]) -> list[Entry]:
        """Replace all entries from outside with variables."""
        replacements: dict[Entry, Entry] = {}

        def move(entry: Entry) -> Entry:
            if not self._belongs_to_body(entry.node):
                variable = replacements.get(entry)
                if variable is None:
                    label = entry.node.output_name(entry.index)
                    variable = replacements[entry] = Entry(Node(None, label, origin=entry.node.origin), 0)
                    self.sources.setdefault(label, entry)
                return variable
            if entry.node.is_variable:
                self.sources.setdefault(entry.node.name, entry)
            return replacements.get(entry, entry)

        for node in self._inner_nodes(entries):
            if node.op is None:
                continue
            inputs = tuple(move(entry) for entry in node.inputs)
            if inputs != node.inputs:
                copy = Node(
                    node.op, node.name, inputs, node.attributes, node.user_parameters, node.origin, node.versions
                )
                replacements.update((Entry(node, i), Entry(copy, i)) for i in range(node.outputs()))
        return [move(entry) for entry in entries]

    def _inner_nodes(self, entries: Sequence[Entry]) -> list[Node]:
        return [node for node in topological(entries) if self._belongs_to_body(node)]

    def names(self) -> list[str]:
        """Return the names of the body's inputs."""
        return [node.name for node in self.body.variables]


def _inside_name(symbol: Symbol) -> str:
    return f"{symbol.name}-{symbol.entries[0].index}"


def _placeholder(symbol: Symbol) -> Symbol:
    return Variable(_inside_name(symbol))


def _sources_of(symbols: Sequence[Symbol]) -> dict[str, Entry]:
    """Return the entries that the placeholders of symbols represent, by name."""
    table = {_inside_name(symbol): symbol.entries[0] for symbol in symbols}
    if len(table) != len(symbols):
        raise ValueError(f"two of the symbols {', '.join(map(_inside_name, symbols))} have the same name")
    return table


def _compose(
    operator: str, traced: Sequence[_TracedBody], inputs: Sequence[Entry], parameters: Mapping[str, object]
) -> Symbol:
    """Create the node of a loop or branch."""
    cls: type[Operator] = lookup(operator)
    texts = {key: str(value) for key, value in parameters.items()}
    texts["num_args"] = str(len(inputs) + len(traced))
    op = cls.create(**texts, subgraphs=tuple(trace.body for trace in traced))
    label = name.current().get(None, operator)
    node = Node(op, label, tuple(inputs), attribute.stored_form(attribute.current()), texts, capture(3))
    return Symbol([Entry(node, index) for index in range(op.visible_outputs())])


def _merge_inputs(traced: Sequence[_TracedBody], sources: Mapping[str, Entry]) -> tuple[list[Entry], list[list[int]]]:
    """Return the inputs of several bodies without duplicates, and the positions of each body's inputs in them."""
    inputs: dict[Entry, int] = {}
    locations = []
    for trace in traced:
        entries = [sources.get(label) or trace.sources[label] for label in trace.names()]
        locations.append([inputs.setdefault(entry, len(inputs)) for entry in entries])
    return list(inputs), locations


def _restore_nesting(symbol: Symbol, form: Format) -> Any:
    return regroup(list(symbol), form)


Data = TypeVar("Data")
States = TypeVar("States")
Outputs = TypeVar("Outputs")
"""Symbols, or nested lists and tuples of them."""


def foreach(
    body: Callable[[Data, States], tuple[Outputs, States]], data: Data, init_states: States, name: str = "foreach"
) -> tuple[Outputs, States]:
    """Loop over the slices of the data along the first axis.

    Args:
        body: called as ``body(slice, states)``; returns the outputs of one iteration and the new states.
        data: a symbol, or a (nested) list of them.
        init_states: the initial states, a symbol or a (nested) list of them.
        name: the name of the subgraph.

    Returns:
        the stacked outputs of all iterations, and the last states, nested as the body returned them.

    Raises:
        TypeError: a value is not a symbol.
        ValueError: the nesting of the states changes, or the body does not use all data and states.
    """
    slices, data_form = flatten(data, Symbol, "foreach: data")
    states, state_form = flatten(init_states, Symbol, "foreach: init_states")

    def trace() -> tuple[Format, list[Symbol]]:
        inside, before = map(_placeholder, slices), map(_placeholder, states)
        outputs, after = body(regroup(list(inside), data_form), regroup(list(before), state_form))
        flat, form = flatten(outputs, Symbol, "foreach: the body's outputs")
        flat_after, after_form = flatten(after, Symbol, "foreach: the body's states")
        if after_form != state_form:
            raise ValueError(f"foreach: the body returned states nested as {after_form}, expected {state_form}")
        return form, [*flat, *flat_after]

    traced = _TracedBody(name, trace)
    sources = _sources_of([*slices, *states])
    names = traced.names()
    for label in sources:
        if label not in names:
            raise ArgumentError(f"foreach: the body must use all data and states, and does not use {label!r}")
    free_names = [label for label in names if label not in sources]
    outputs = len(traced.body.entries)
    output_count = outputs - len(states)
    outputs_ = _compose(
        "_foreach", [traced], [*sources.values(), *(traced.sources[label] for label in free_names)],
        {
            "num_outputs": outputs,
            "num_out_data": output_count,
            "in_data_locs": [names.index(label) for label in list(sources)[: len(slices)]],
            "in_state_locs": [names.index(label) for label in list(sources)[len(slices) :]],
            "remain_locs": [names.index(label) for label in free_names],
        },
    )  # fmt: skip
    return _restore_nesting(outputs_[:output_count], traced.result), _restore_nesting(
        outputs_[output_count:], state_form
    )


def while_loop(
    cond: Callable[..., object],
    func: Callable[..., tuple[Outputs, States]],
    loop_vars: States,
    max_iterations: int | None = None,
    name: str = "while_loop",
) -> tuple[Outputs, States]:
    """Loop while a condition holds.

    Args:
        cond: called as ``cond(*loop_vars)``; returns a symbol of one element.
        func: called as ``func(*loop_vars)``; returns the outputs of one iteration and the new loop variables.
        loop_vars: the initial loop variables, a (nested) list of symbols.
        max_iterations: the maximum number of iterations.
        name: the name of the subgraphs.

    Returns:
        the outputs, stacked along a first axis of length ``max_iterations`` (0 beyond the last iteration), and
        the last loop variables.

    Raises:
        TypeError: a value is not a symbol.
        ValueError: ``max_iterations`` is missing, there are no loop variables, the function does not use all of them,
            or it returns a different number of them.
    """
    if max_iterations is None:
        raise ValueError("while_loop: max_iterations must be given")
    single = isinstance(loop_vars, Symbol)
    variables, form = flatten([loop_vars] if single else loop_vars, Symbol, "while_loop: loop_vars")
    if not variables:
        raise ValueError("while_loop: loop_vars is empty, expected at least one")
    traced = _trace_while_loop(cond, func, variables, form, name)
    sources = _sources_of(variables)
    names = traced[1].names()
    for label in sources:
        if label not in names:
            raise ValueError(f"while_loop: the function must use all loop variables, and does not use {label!r}")
    inputs, (cond_locs, func_locs) = _merge_inputs(traced, sources)
    count = len(traced[1].body.entries)
    output_count = count - len(variables)
    outputs = _compose(
        "_while_loop", traced, inputs,
        {
            "max_iterations": int(max_iterations),
            "num_outputs": count,
            "num_out_data": output_count,
            "cond_input_locs": cond_locs,
            "func_input_locs": func_locs,
            "func_var_locs": [names.index(label) for label in sources],
        },
    )  # fmt: skip
    last = _restore_nesting(outputs[output_count:], form)
    return _restore_nesting(outputs[:output_count], traced[1].result), last[0] if single else last


def _trace_while_loop(
    cond: Callable[..., object], func: Callable[..., Any], variables: Sequence[Symbol], form: Format, name: str
) -> list[_TracedBody]:
    """Return the graphs of a loop's condition and of one iteration."""

    def arguments() -> Any:
        return regroup([_placeholder(variable) for variable in variables], form)

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

    return [_TracedBody(f"{name}_cond", condition), _TracedBody(f"{name}_func", step)]


def cond(
    pred: Symbol, then_func: Callable[[], Outputs], else_func: Callable[[], Outputs], name: str = "cond"
) -> Outputs:
    """Compute one of two branches.

    Args:
        pred: a symbol of one element.
        then_func: called without arguments; its result is computed if ``pred`` is not 0.
        else_func: called without arguments; its result is computed if ``pred`` is 0. It must return the same number of
            symbols as ``then_func``, of the same shapes.
        name: the name of the subgraphs.

    Returns:
        the outputs, nested as ``then_func`` returned them.

    Raises:
        TypeError: a value is not a symbol.
        ValueError: the branches return different numbers of symbols, or ``pred`` has several outputs.
    """

    def branch(function: Callable[[], object]) -> Callable[[], tuple[Format, list[Symbol]]]:
        def trace() -> tuple[Format, list[Symbol]]:
            flat, form = flatten(function(), Symbol, "cond: the branch's outputs")
            return form, flat

        return trace

    parts = {"pred": lambda: pred, "then": then_func, "else": else_func}
    traced = [_TracedBody(f"{name}_{part}", branch(function)) for part, function in parts.items()]
    pred_count, then_count, else_count = (len(graph.body.entries) for graph in traced)
    if pred_count != 1:
        raise ValueError(f"cond: pred has {pred_count} outputs, expected 1")
    if then_count != else_count:
        raise ValueError(
            f"cond: then_func returned {then_count} symbols and else_func {else_count}, expected the same number"
        )
    inputs, locations = _merge_inputs(traced, {})
    outputs = _compose(
        "_cond", traced, inputs,
        {
            "cond_input_locs": locations[0],
            "then_input_locs": locations[1],
            "else_input_locs": locations[2],
            "num_outputs": then_count,
        },
    )  # fmt: skip
    result: Outputs = _restore_nesting(outputs, traced[1].result)
    return result
