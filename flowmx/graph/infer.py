"""Shape and dtype inference over a graph, as far as what is given reaches.

Each operator completes what is known of its inputs and outputs; the nodes are visited again, forward
and backward, until nothing new is learned. A node of which everything is known is settled: what is known never
changes, so it is not asked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from flowmx.errors import MXNetError, ShapeError, TypeInferenceError
from flowmx.graph.node import Entry, Node
from flowmx.ops.registry.dtypes import FLOAT32, DType, as_dtype, name_of
from flowmx.ops.registry.operators import Operator, Shape, ShapeOrNone, merge

_ROUNDS = 8


def infer_shapes(
    nodes: Sequence[Node], known: Mapping[Node, ShapeOrNone], wanted: Mapping[Entry, ShapeOrNone] | None = None
) -> dict[Entry, ShapeOrNone]:
    """The shape of every entry of ``nodes``, as far as it follows from what is known.

    Args:
        nodes: the graph, inputs before users.
        known: shapes of variables.
        wanted: shapes that users of further entries expect.

    Raises:
        ShapeError: shapes contradict each other; names the node, its inputs and the line that made it.
    """
    shapes: dict[Entry, ShapeOrNone] = {}
    for node in nodes:
        if node.is_variable:
            shapes[Entry(node, 0)] = _begun_with(known.get(node), _declared_shape(node))
        else:
            shapes.update((Entry(node, index), None) for index in range(node.outputs()))
    for entry, shape in (wanted or {}).items():
        shapes[entry] = _begun_with(shapes[entry], shape)
    open_ = [(node, _outputs(node)) for node in nodes if node.op is not None]
    known_of: _Learned = {}
    for turn in range(_ROUNDS):
        changed, left = False, []
        for node, outputs in open_:
            learned, is_settled = _infer_node(node, outputs, shapes, known_of)
            changed |= learned
            if not is_settled or (learned and _reads_twice(node)):
                left.append((node, outputs))
        open_ = left[::-1]
        if not open_ or (not changed and turn):
            break
    return shapes


def _begun_with(given: ShapeOrNone, declared: ShapeOrNone) -> ShapeOrNone:
    """The initial shape of an entry: as given, or where that is only partly known merged with the declared one."""
    if given is not None and -1 not in given:
        return given
    both: Any = merge(given, declared)
    return declared if both is False else both


def _reads_twice(node: Node) -> bool:
    """Tell whether a node reads the same entry twice, for which its inputs may infer different shapes."""
    return len(set(node.inputs)) < len(node.inputs)


def _outputs(node: Node) -> list[Entry]:
    return [Entry(node, index) for index in range(node.outputs())]


def _declared_shape(node: Node) -> ShapeOrNone:
    """The shape that ``Variable(shape=...)`` gave, where 0 means unknown."""
    text = node.attributes.get("__shape__")
    if not text:
        return None
    from flowmx.ops.registry.parameters import Parameter

    parameter = Parameter("__shape__", tuple[int, ...], True, None, "", None, None)
    shape = parameter.convert(text, f"variable {node.name!r}")
    return tuple(n if n > 0 else -1 for n in shape) if shape is not None else None


_Learned = dict[tuple[Any, ...], tuple[list[ShapeOrNone], bool]]
"""By operator and what was known: the shapes of inputs and outputs, and whether they are complete. Others in the graph
are like it, as in an unrolled network."""


def _infer_node(
    node: Node, outputs: list[Entry], shapes: dict[Entry, ShapeOrNone], learned: _Learned
) -> tuple[bool, bool]:
    """Infer the shapes at one node; returns whether something was learned, and whether nothing is left to learn."""
    op = node.op
    assert op is not None
    given = [shapes[entry] for entry in node.inputs]
    key = (op, *given, *[shapes[entry] for entry in outputs])
    known = learned.get(key)
    if known is None:
        inputs, results = _asked(node, op, given, outputs, shapes)
        known = learned[key] = [*inputs, *results], all(map(complete, (*inputs, *results)))
    changed = False
    for entry, shape in zip((*node.inputs, *outputs), known[0], strict=True):
        if shapes[entry] != shape:
            shapes[entry] = shape
            changed = True
    return changed, known[1]


def _asked(
    node: Node, op: Operator, given: list[ShapeOrNone], outputs: list[Entry], shapes: Mapping[Entry, ShapeOrNone]
) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
    """The shapes of a node's inputs and outputs, as far as its operator knows."""
    try:
        if _is_plain(op):
            # What the output's users know of it holds for the inputs too.
            given = [merge_or_raise(each, shapes[outputs[0]], op) for each in given]
        elif type(op).infer_back is not Operator.infer_back and not all(map(complete, given)):
            back = op.infer_back(given, [shapes[entry] for entry in outputs])
            given = [merge_or_raise(before, after, op) for before, after in zip(given, back, strict=True)]
        inputs, results = from_inputs(op, given)
        for position, (before, after) in enumerate(zip(given, inputs, strict=True)):
            if before is not None and before != after:
                inputs[position] = merge_or_raise(before, after, op, (*op.inputs(), *op.auxiliary)[position])
        for position, (entry, result) in enumerate(zip(outputs, results, strict=True)):
            if shapes[entry] is not None:
                results[position] = merge_or_raise(shapes[entry], result, op)
    except MXNetError as error:
        _raise_at(node, error, {e.node.output_name(e.index): shapes[e] for e in node.inputs})
    return inputs, results


def from_inputs(op: Operator, given: Sequence[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
    """Infer the shapes of an operator's inputs and results from what is known of its inputs.

    Lengths of 0 in a shape that the operator was given (zeros, samples) are decided by what reads it, as in MXNet.
    """
    inputs, results = op.infer_shape(list(given))
    if not op.inputs() and "shape" in op.parameters:
        results = [None if shape is None else tuple(length or -1 for length in shape) for shape in results]
    return inputs, results


def _is_plain(op: Operator) -> bool:
    return type(op).infer_shape is Operator.infer_shape


def merge_or_raise(one: ShapeOrNone, other: ShapeOrNone, op: Operator, argument: str = "output") -> ShapeOrNone:
    """Merge two partly known shapes.

    Raises:
        ShapeError: they contradict each other.
    """
    merged = merge(one, other)
    if merged is False:
        raise ShapeError(f"{op.name}: {argument} has shape {one}, expected {other}")
    shape: ShapeOrNone = merged
    return shape


def _raise_at(node: Node, error: MXNetError, inputs: Mapping[str, Any]) -> NoReturn:
    """Raise the error with the node, its inputs and the line that made it in the message."""
    shown = ", ".join(f"{name}: {value}" for name, value in inputs.items())
    raise type(error)(
        f"node {node.name!r} ({node.op!r}): {error}\n  its inputs: {shown}\n  made at {node.place()}"
    ) from None


def complete(shape: ShapeOrNone) -> bool:
    """True for a shape without unknowns."""
    return shape is not None and -1 not in shape


def infer_types(
    nodes: Sequence[Node], known: Mapping[Node, DType | None], shapes: Mapping[Entry, Shape] | None = None
) -> dict[Entry, DType]:
    """The dtype of every entry; what nothing says is float32.

    Raises:
        TypeInferenceError: as :func:`partial_types`.
    """
    found = partial_types(nodes, known, shapes)
    return {entry: FLOAT32 if dtype is None else dtype for entry, dtype in found.items()}


def partial_types(
    nodes: Sequence[Node], known: Mapping[Node, DType | None], shapes: Mapping[Entry, Shape] | None = None
) -> dict[Entry, DType | None]:
    """The dtype of every entry, as far as it follows from ``known``, and for some operators from ``shapes``.

    Raises:
        TypeInferenceError: dtypes contradict each other; names the node, its inputs and the line.
    """
    dtypes: dict[Entry, DType | None] = {}
    open_: list[tuple[Node, list[Entry]]] = []
    for node in nodes:
        if node.op is not None:
            outputs = _outputs(node)
            open_.append((node, outputs))
            dtypes.update(dict.fromkeys(outputs, known.get(node)))
            continue
        given, declared = known.get(node), node.attributes.get("__dtype__")
        if given is None and declared is not None and int(declared) >= 0:
            given = as_dtype(int(declared))
        dtypes[Entry(node, 0)] = given
    for turn in range(_ROUNDS):
        changed, left = False, []
        for node, outputs in open_:
            changed |= _infer_types_of(node, outputs, dtypes, turn > 0, shapes)
            if any(dtypes[entry] is None for entry in (*node.inputs, *outputs)):
                left.append((node, outputs))
        open_ = left[::-1]
        if not open_ or (not changed and turn):
            break
    return dtypes


def _infer_types_of(
    node: Node, outputs: Sequence[Entry], dtypes: dict[Entry, DType | None], backward: bool,
    shapes: Mapping[Entry, Shape] | None,
) -> bool:  # fmt: skip
    """Ask one operator; returns whether something new was learned.

    Args:
        node: whose operator is asked.
        outputs: its entries.
        dtypes: of all entries, as far as they are known; completed.
        backward: whether inputs of which nothing is known take the dtype that users of the outputs want. What follows
            from the given dtypes alone comes first.
        shapes: of all entries, where they are known.
    """
    assert node.op is not None
    before = [dtypes[entry] for entry in node.inputs]
    wanted = dtypes[outputs[0]]
    try:
        if backward and wanted is not None and before and all(dtype is None for dtype in before):
            before = _inputs_for(node.op, wanted, len(before))
        inputs, results = node.op.infer_type(list(before))
        if shapes is not None and node.op.traits.typed_by_shapes and None not in inputs:
            found: Any = tuple(inputs)
            results = list(node.op.spec(tuple(shapes[entry] for entry in node.inputs), found).dtypes)
    except TypeInferenceError as error:
        named = {
            e.node.output_name(e.index): "unknown" if d is None else name_of(d)
            for e, d in zip(node.inputs, before, strict=True)
        }
        _raise_at(node, error, named)
    changed = False
    for entry, dtype in (*zip(node.inputs, inputs, strict=True), *zip(outputs, results, strict=True)):
        if dtype is not None and dtypes[entry] is None:
            dtypes[entry] = dtype
            changed = True
    return changed


def _inputs_for(op: Operator, wanted: DType, count: int) -> list[DType | None]:
    """The dtypes of inputs, where the first output has that of the first input; else nothing is known of them."""
    unknown: list[DType | None] = [None] * count
    if op.traits.detached or op.infer_type(list(unknown))[1][0] is not None:
        return unknown
    given = [wanted, *unknown[1:]]
    try:
        return given if op.infer_type(list(given))[1][0] == wanted else unknown
    except TypeInferenceError:  # the first input has to be of another kind, such as an index
        return unknown


def from_variables(
    nodes: Sequence[Node], shapes: Mapping[Node, ShapeOrNone], dtypes: Mapping[Node, DType]
) -> tuple[dict[Entry, Shape], dict[Entry, DType]] | None:
    """The shapes and dtypes of every entry, where all of them follow from the variables' in one walk; else None.

    That is where nothing is open, and no error to be told.
    """
    found_shapes: dict[Entry, Shape] = {}
    found_dtypes: dict[Entry, DType] = {}
    for node in nodes:
        if node.op is None:
            shape, dtype = shapes.get(node), dtypes.get(node)
            if shape is None or -1 in shape or dtype is None:
                return None
            found_shapes[Entry(node, 0)], found_dtypes[Entry(node, 0)] = shape, dtype
            continue
        inputs = node.inputs
        try:
            spec = node.op.spec(
                tuple([found_shapes[entry] for entry in inputs]), tuple([found_dtypes[entry] for entry in inputs])
            )
        except MXNetError:
            return None
        if not spec.follows:
            return None
        for index, shape in enumerate(spec.shapes):
            entry = Entry(node, index)
            found_shapes[entry], found_dtypes[entry] = shape, spec.dtypes[index]
    return found_shapes, found_dtypes


def known_shapes(nodes: Sequence[Node], given: Mapping[Node, ShapeOrNone]) -> dict[Entry, Shape]:
    """The shape of every entry of ``nodes``, all of which must follow from those ``given``.

    Raises:
        ShapeError: shapes contradict each other, or one is unknown.
    """
    found = infer_shapes(nodes, given)
    return {entry: known_shape(shape, entry.node.output_name(entry.index)) for entry, shape in found.items()}


def known_shape(shape: ShapeOrNone, what: str) -> Shape:
    """The shape, which must be complete.

    Raises:
        ShapeError: something in it is unknown.
    """
    if shape is None or -1 in shape:
        raise ShapeError(f"the shape of {what} does not follow from what was given (known of it: {shape})")
    return shape
