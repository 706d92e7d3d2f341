"""Shape and dtype inference over a graph, from partial information.

Each operator completes the shapes of its inputs and outputs. The nodes are visited again, forward and backward, until
nothing changes. A node whose shapes are complete is not visited again: known shapes never change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from flowmx.errors import MXNetError, ShapeError, TypeInferenceError
from flowmx.graph.node import Entry, Node
from flowmx.ops.registry.dtypes import FLOAT32, DType, dtype_numbered, name_of
from flowmx.ops.registry.operators import Operator, Shape, ShapeOrNone, merge

_ROUNDS = 8


def infer_shapes(
    nodes: Sequence[Node], variables: Mapping[Node, ShapeOrNone], expected: Mapping[Entry, ShapeOrNone] | None = None
) -> dict[Entry, ShapeOrNone]:
    """Return the shape of every entry of ``nodes``, as far as it can be inferred.

    Args:
        nodes: the graph, inputs before users.
        variables: shapes of variables.
        expected: shapes that readers of other entries expect.

    Raises:
        ShapeError: shapes contradict each other; the message names the node, its inputs and the user's line.
    """
    shapes: dict[Entry, ShapeOrNone] = {}
    for node in nodes:
        if node.is_variable:
            shapes[Entry(node, 0)] = _initial_shape(variables.get(node), _declared_shape(node))
        else:
            shapes.update((Entry(node, index), None) for index in range(node.outputs()))
    for entry, shape in (expected or {}).items():
        shapes[entry] = _initial_shape(shapes[entry], shape)
    pending = [(node, _outputs(node)) for node in nodes if node.op is not None]
    cache: _Cache = {}
    for iteration in range(_ROUNDS):
        changed, unsolved = False, []
        for node, outputs in pending:
            has_changed, is_complete = _infer_node(node, outputs, shapes, cache)
            changed |= has_changed
            if not is_complete or (has_changed and _reads_twice(node)):
                unsolved.append((node, outputs))
        pending = unsolved[::-1]
        if not pending or (not changed and iteration):
            break
    return shapes


def _initial_shape(shape: ShapeOrNone, declared: ShapeOrNone) -> ShapeOrNone:
    """Return the initial shape of an entry: ``shape`` if complete, else ``shape`` merged with the declared one."""
    if shape is not None and -1 not in shape:
        return shape
    both: Any = merge(shape, declared)
    return declared if both is False else both


def _reads_twice(node: Node) -> bool:
    """Return whether a node reads the same entry twice; its operator may then infer different shapes for it."""
    return len(set(node.inputs)) < len(node.inputs)


def _outputs(node: Node) -> list[Entry]:
    return [Entry(node, index) for index in range(node.outputs())]


def _declared_shape(node: Node) -> ShapeOrNone:
    """Return the shape of ``Variable(shape=...)``, in which 0 means unknown."""
    text = node.attributes.get("__shape__")
    if not text:
        return None
    from flowmx.ops.registry.parameters import Parameter

    parameter = Parameter("__shape__", tuple[int, ...], True, None, "", None, None)
    shape = parameter.convert(text, f"variable {node.name!r}")
    return tuple(n if n > 0 else -1 for n in shape) if shape is not None else None


_Cache = dict[tuple[object, ...], tuple[list[ShapeOrNone], bool]]
"""Inferred shapes of inputs and outputs, and whether they are complete, by operator and previous shapes.

Unrolled networks contain many equal nodes.
"""


def _infer_node(node: Node, outputs: list[Entry], shapes: dict[Entry, ShapeOrNone], cache: _Cache) -> tuple[bool, bool]:
    """Infer the shapes at one node; return whether a shape changed, and whether all shapes are complete."""
    op = node.op
    assert op is not None
    before = [shapes[entry] for entry in node.inputs]
    key = (op, *before, *[shapes[entry] for entry in outputs])
    row = cache.get(key)
    if row is None:
        inputs, results = _infer_with(node, op, before, outputs, shapes)
        row = cache[key] = [*inputs, *results], all(map(complete, (*inputs, *results)))
    changed = False
    for entry, shape in zip((*node.inputs, *outputs), row[0], strict=True):
        if shapes[entry] != shape:
            shapes[entry] = shape
            changed = True
    return changed, row[1]


def _infer_with(
    node: Node, op: Operator, partial: list[ShapeOrNone], outputs: list[Entry], shapes: Mapping[Entry, ShapeOrNone]
) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
    """Return the shapes of a node's inputs and outputs, as far as its operator can infer them."""
    try:
        if _is_plain(op):
            # The output has the shape of the inputs.
            partial = [merge_or_raise(shape, shapes[outputs[0]], op) for shape in partial]
        elif type(op).infer_back is not Operator.infer_back and not all(map(complete, partial)):
            back = op.infer_back(partial, [shapes[entry] for entry in outputs])
            partial = [merge_or_raise(old, new, op) for old, new in zip(partial, back, strict=True)]
        inputs, results = from_inputs(op, partial)
        for position, (old, new) in enumerate(zip(partial, inputs, strict=True)):
            if old is not None and old != new:
                inputs[position] = merge_or_raise(old, new, op, (*op.inputs(), *op.auxiliary)[position])
        for position, (entry, result) in enumerate(zip(outputs, results, strict=True)):
            if shapes[entry] is not None:
                results[position] = merge_or_raise(shapes[entry], result, op)
    except MXNetError as error:
        _raise_at(node, error, {e.node.output_name(e.index): shapes[e] for e in node.inputs})
    return inputs, results


def from_inputs(op: Operator, shapes: Sequence[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
    """Infer the shapes of an operator's inputs and results from the partial shapes of its inputs.

    A length of 0 in the shape parameter of an operator (zeros, samples) is determined by its readers, as in MXNet.
    """
    inputs, results = op.infer_shape(list(shapes))
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


def _raise_at(node: Node, error: MXNetError, inputs: Mapping[str, object]) -> NoReturn:
    """Raise the error again, with the node, its inputs and the user's line in the message."""
    shown = ", ".join(f"{name}: {value}" for name, value in inputs.items())
    raise type(error)(
        f"node {node.name!r} ({node.op!r}): {error}\n  its inputs: {shown}\n  made at {node.place()}"
    ) from None


def complete(shape: ShapeOrNone) -> bool:
    """Return whether a shape has no unknown length."""
    return shape is not None and -1 not in shape


def infer_types(
    nodes: Sequence[Node], variables: Mapping[Node, DType | None], shapes: Mapping[Entry, Shape] | None = None
) -> dict[Entry, DType]:
    """Return the dtype of every entry; float32 where nothing determines it.

    Raises:
        TypeInferenceError: see :func:`partial_types`.
    """
    dtypes = partial_types(nodes, variables, shapes)
    return {entry: FLOAT32 if dtype is None else dtype for entry, dtype in dtypes.items()}


def partial_types(
    nodes: Sequence[Node], variables: Mapping[Node, DType | None], shapes: Mapping[Entry, Shape] | None = None
) -> dict[Entry, DType | None]:
    """Return the dtype of every entry, as far as ``variables``, and for some operators ``shapes``, determine it.

    Raises:
        TypeInferenceError: dtypes contradict each other; the message names the node, its inputs and the line.
    """
    dtypes: dict[Entry, DType | None] = {}
    pending: list[tuple[Node, list[Entry]]] = []
    for node in nodes:
        if node.op is not None:
            outputs = _outputs(node)
            pending.append((node, outputs))
            dtypes.update(dict.fromkeys(outputs, variables.get(node)))
            continue
        dtype, declared = variables.get(node), node.attributes.get("__dtype__")
        if dtype is None and declared is not None and int(declared) >= 0:
            dtype = dtype_numbered(int(declared))
        dtypes[Entry(node, 0)] = dtype
    for iteration in range(_ROUNDS):
        changed, unsolved = False, []
        for node, outputs in pending:
            changed |= _infer_types_of(node, outputs, dtypes, iteration > 0, shapes)
            if any(dtypes[entry] is None for entry in (*node.inputs, *outputs)):
                unsolved.append((node, outputs))
        pending = unsolved[::-1]
        if not pending or (not changed and iteration):
            break
    return dtypes


def _infer_types_of(
    node: Node, outputs: Sequence[Entry], dtypes: dict[Entry, DType | None], backward: bool,
    shapes: Mapping[Entry, Shape] | None,
) -> bool:  # fmt: skip
    """Infer the dtypes at one node; return whether a dtype changed.

    Args:
        node: the node.
        outputs: its entries.
        dtypes: the dtypes of all entries, as far as they are known; completed.
        backward: whether inputs without any known dtype take the dtype that readers of the outputs expect. Inference
            from known inputs comes first.
        shapes: the shapes of all entries, if known.
    """
    assert node.op is not None
    before = [dtypes[entry] for entry in node.inputs]
    expected = dtypes[outputs[0]]
    try:
        if backward and expected is not None and before and all(dtype is None for dtype in before):
            before = _inputs_for(node.op, expected, len(before))
        inputs, results = node.op.infer_type(list(before))
        if shapes is not None and node.op.traits.typed_by_shapes and None not in inputs:
            input_types: Any = tuple(inputs)
            results = list(node.op.spec(tuple(shapes[entry] for entry in node.inputs), input_types).dtypes)
    except TypeInferenceError as error:
        names = {
            e.node.output_name(e.index): "unknown" if d is None else name_of(d)
            for e, d in zip(node.inputs, before, strict=True)
        }
        _raise_at(node, error, names)
    changed = False
    for entry, dtype in (*zip(node.inputs, inputs, strict=True), *zip(outputs, results, strict=True)):
        if dtype is not None and dtypes[entry] is None:
            dtypes[entry] = dtype
            changed = True
    return changed


def _inputs_for(op: Operator, expected: DType, count: int) -> list[DType | None]:
    """Return input dtypes for an operator whose output has the dtype of its first input; else all None."""
    unknown: list[DType | None] = [None] * count
    if op.traits.detached or op.infer_type(list(unknown))[1][0] is not None:
        return unknown
    dtypes = [expected, *unknown[1:]]
    try:
        return dtypes if op.infer_type(list(dtypes))[1][0] == expected else unknown
    except TypeInferenceError:  # the first input has to be of another kind, such as an index
        return unknown


def from_variables(
    nodes: Sequence[Node], shapes: Mapping[Node, ShapeOrNone], dtypes: Mapping[Node, DType]
) -> tuple[dict[Entry, Shape], dict[Entry, DType]] | None:
    """Return the shapes and dtypes of every entry, if one pass from the variables determines them all; else None.

    None also stands for an error, which the full inference then reports.
    """
    all_shapes: dict[Entry, Shape] = {}
    all_dtypes: dict[Entry, DType] = {}
    for node in nodes:
        if node.op is None:
            shape, dtype = shapes.get(node), dtypes.get(node)
            if shape is None or -1 in shape or dtype is None:
                return None
            all_shapes[Entry(node, 0)], all_dtypes[Entry(node, 0)] = shape, dtype
            continue
        inputs = node.inputs
        try:
            spec = node.op.spec(
                tuple([all_shapes[entry] for entry in inputs]), tuple([all_dtypes[entry] for entry in inputs])
            )
        except MXNetError:
            return None
        if not spec.follows:
            return None
        for index, shape in enumerate(spec.shapes):
            entry = Entry(node, index)
            all_shapes[entry], all_dtypes[entry] = shape, spec.dtypes[index]
    return all_shapes, all_dtypes


def known_shapes(nodes: Sequence[Node], variables: Mapping[Node, ShapeOrNone]) -> dict[Entry, Shape]:
    """Return the shape of every entry of ``nodes``, all of which must follow from ``variables``.

    Raises:
        ShapeError: shapes contradict each other, or one is unknown.
    """
    shapes = infer_shapes(nodes, variables)
    return {entry: known_shape(shape, entry.node.output_name(entry.index)) for entry, shape in shapes.items()}


def known_shape(shape: ShapeOrNone, what: str) -> Shape:
    """Return the shape, which must be complete.

    Raises:
        ShapeError: a length is unknown.
    """
    if shape is None or -1 in shape:
        raise ShapeError(f"the shape of {what} cannot be inferred from the given shapes (inferred so far: {shape})")
    return shape
