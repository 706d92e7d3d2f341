"""Layers put together with what follows them, before a graph is quantized and after it was calibrated.

The nodes are those that MXNet's oneDNN backend makes, so that files go both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flowmx.graph.infer import partial_types
from flowmx.graph.node import Entry, Node, topological
from flowmx.graph.quantizing.measured_ranges import rebuilt, with_parameters
from flowmx.graph.subgraph import Body
from flowmx.ops.math.binary import SUMS
from flowmx.ops.math.elementwise import ABSOLUTE
from flowmx.ops.math.select import Clip
from flowmx.ops.nn.activation import Activation, LeakyReLU
from flowmx.ops.nn.convolution import Convolution
from flowmx.ops.nn.dropout import Dropout
from flowmx.ops.nn.linear import FullyConnected
from flowmx.ops.nn.normalization.batch_norm import BatchNorm
from flowmx.ops.quantization.conversions import Dequantize, Requantize
from flowmx.ops.quantization.fused import ConvolutionPart, Part, ProductPart
from flowmx.ops.quantization.layers import QuantizedConcat, QuantizedPooling
from flowmx.ops.quantization.ranges import INT8, Range
from flowmx.ops.registry.operators import Operator
from flowmx.ops.registry.traits import Passing

__all__ = ["fused"]

_ENDS = ("min_calib_range", "max_calib_range")
_JOINING = (QuantizedConcat, QuantizedPooling)
_Next = Callable[[Sequence[Node], Node], str]


def fused(entries: Sequence[Entry]) -> list[Entry]:
    """The graph with each convolution, and each product, put together with what follows it as far as that goes.

    What only passes its input on in prediction goes away.
    """
    found = rebuilt(entries, _without_identities)
    found = _joined(found, Convolution, ConvolutionPart, _after_convolution)
    found = _joined(found, FullyConnected, ProductPart, _after_product)
    return _aligned(_with_ends(found))


def _without_identities(node: Node, inputs: tuple[Entry, ...]) -> Entry | None:
    op = node.op
    if (isinstance(op, Dropout) and op.mode == "training") or (
        op is not None and op.traits.passing is Passing.ALWAYS and not op.traits.casts and len(inputs) == 1
    ):
        return inputs[0]
    return None


def _readers(entries: Sequence[Entry]) -> dict[Node, list[Node | None]]:
    """The nodes that read each node, once for each time they do; None for an output of the graph."""
    found: dict[Node, list[Node | None]] = {}
    for entry in entries:
        found.setdefault(entry.node, []).append(None)
    for node in topological(entries):
        for entry in node.inputs:
            found.setdefault(entry.node, []).append(node)
    return found


def _joined(entries: Sequence[Entry], first: type[Operator], part: type[Part], ending: _Next) -> list[Entry]:
    """The graph with chains that begin at an operator as single nodes."""
    readers = _readers(entries)
    chains: dict[Node, list[Node]] = {}
    flags: dict[Node, dict[str, str]] = {}
    taken: set[Node] = set()
    for node in topological(entries):
        if type(node.op) is not first or not _fits(node):
            continue
        chain, given = [node], {}
        while True:
            following = readers.get(chain[-1], [])
            if len(following) != 1 or following[0] is None or following[0] in taken:
                break
            flag = ending(chain, following[0])
            if not flag:
                break
            given[flag] = "true"
            chain.append(following[0])
        taken.update(chain)
        chains[chain[-1]], flags[chain[-1]] = chain, given
    numbers = {last: number for number, last in enumerate(chains)}
    inside = taken - set(chains)

    def change(node: Node, inputs: tuple[Entry, ...]) -> Node | None:
        if node in inside:
            sources[node] = inputs
            return None
        if node not in chains:
            return None
        sources[node] = inputs
        return _part(chains[node], sources, part, flags[node], numbers[node])

    sources: dict[Node, tuple[Entry, ...]] = {}
    return rebuilt(entries, change)


def _fits(node: Node) -> bool:
    op = node.op
    return not isinstance(op, Convolution) or len(op.kernel) in (2, 3)


def _part(
    chain: Sequence[Node], sources: dict[Node, tuple[Entry, ...]], part: type[Part], given: dict[str, str], number: int
) -> Node:
    """The node in the place of a chain."""
    inputs: list[Entry] = []
    before: Node | None = None
    copies: dict[Node, Node] = {}
    label = {Convolution: "conv", FullyConnected: "fully_connected", BatchNorm: "bn"}
    words = []
    for node in chain:
        own: list[Entry] = []
        added: list[Entry] = []
        for at, entry in enumerate(node.inputs):
            if before is not None and entry.node is before:
                own.append(Entry(copies[before], 0))
                continue
            source = sources[node][at]
            variable = Entry(
                Node(None, f"{node.name}_{at}" if entry.node.op else entry.node.name, origin=node.origin), 0
            )
            inputs.append(source)
            (added if isinstance(node.op, SUMS) else own).append(variable)
        copies[node] = Node(node.op, node.name, (*own, *added), node.attributes, node.given, node.origin)
        end = "add" if isinstance(node.op, SUMS) else "eltwise" if part is ProductPart else "act"
        words.append(label.get(type(node.op), end))
        before = node
    assert before is not None
    spelled = {name: "True" if part is ProductPart else value for name, value in given.items()}
    op = part.create(**spelled, subgraphs=(Body([Entry(copies[before], 0)]),))
    return Node(op, f"sg_mkldnn_{'_'.join(words)}_{number}", tuple(inputs), {}, spelled, chain[0].origin)


def _after_convolution(chain: Sequence[Node], node: Node) -> str:
    """The flag for a node that may join a convolution and what joined it; empty where it may not."""
    op, kinds = node.op, [type(each.op) for each in chain]
    has_sum = any(isinstance(each.op, SUMS) for each in chain)
    if isinstance(op, BatchNorm) and len(chain) == 1:
        return "with_bn" if op.axis == 1 and not op.output_mean_var else ""
    if op is not None and op.name == SUMS[0].name and not has_sum and kinds[-1] in (Convolution, BatchNorm):
        return "with_sum" if [entry.node for entry in node.inputs].count(chain[-1]) == 1 else ""
    if _ended(chain):
        return ""
    fits = _is_rectifier(op, ("leaky", "gelu")) or (isinstance(op, Clip) and op.a_min == 0 and not has_sum)
    return ("with_postsum_act" if has_sum else "with_act") if fits else ""


def _after_product(chain: Sequence[Node], node: Node) -> str:
    """The same for a product."""
    op = node.op
    fits = (
        _is_rectifier(op, ("leaky", "elu", "gelu"))
        or isinstance(op, ABSOLUTE)
        or (isinstance(op, Clip) and op.a_min == 0)
    )
    return "with_eltwise" if fits and len(chain) == 1 else ""


def _ended(chain: Sequence[Node]) -> bool:
    return isinstance(chain[-1].op, (Activation, LeakyReLU, Clip))


def _is_rectifier(op: Any, kinds: Sequence[str]) -> bool:
    return (isinstance(op, Activation) and op.act_type == "relu") or (
        isinstance(op, LeakyReLU) and op.act_type in kinds
    )


def _with_ends(entries: Sequence[Entry]) -> list[Entry]:
    """The graph with the conversions to bytes or real numbers in the operators before them, where those can do it."""
    readers = _readers(entries)
    moved: set[str] = set()

    def change(node: Node, inputs: tuple[Entry, ...]) -> Node | Entry | None:
        source = inputs[0].node if inputs else node
        if isinstance(node.op, Requantize) and node.op.calibrated is not None and _takes(source, _ENDS[0]):
            following = {*readers[node]}
            only = next(iter(following)) if len(following) == 1 else None
            if only is not None and isinstance(only.op, Dequantize) and _takes(source, "enable_float_output"):
                return with_parameters(source, source.inputs, enable_float_output="True")
            moved.add(source.name)
            return with_parameters(source, source.inputs, **_times(node, 1))
        if isinstance(node.op, Dequantize) and getattr(source.op, "enable_float_output", False):
            return Entry(source, 0)
        return None

    found = rebuilt(entries, change)
    dtypes = partial_types(topological(found), {})

    def widen(node: Node, inputs: tuple[Entry, ...]) -> Node | None:
        is_half = node.name in moved and _has_half_a_range(node, dtypes)
        return with_parameters(node, inputs, **_times(node, 2)) if is_half else None

    return rebuilt(found, widen)


def _aligned(entries: Sequence[Entry]) -> list[Entry]:
    """The graph with one range for all that is joined, so that joining only copies.

    That holds through pooling and further joins, for what nothing else reads.
    """
    readers = _readers(entries)
    ends: dict[Node, Range] = {}
    for node in topological(entries):
        if isinstance(node.op, QuantizedConcat):
            sources = _joined_sources(node, readers)
            ranges = [ends.get(each, _range_of(each)) for each in sources]
            lows, highs = zip(*[each for each in ranges if each is not None], strict=True) if ranges else ((), ())
            if len(sources) > 1:
                ends.update(dict.fromkeys(sources, (min(np.float32(0), *lows), max(np.float32(0), *highs))))

    def change(node: Node, inputs: tuple[Entry, ...]) -> Node | None:
        if node not in ends:
            return None
        given = {name: f"{end:.9g}" for name, end in zip(_ENDS, ends[node], strict=True)}
        return with_parameters(node, inputs, **given)

    return rebuilt(entries, change)


def _joined_sources(join: Node, readers: Mapping[Node, Sequence[Node | None]]) -> list[Node]:
    """The nodes with ranges of their own whose values a node joins, and those joined with them later on."""
    seen, found, left = {join}, [], [join]
    goes_on = len({*readers[join]}) == 1
    while left:
        node = left.pop(0)
        for source in dict.fromkeys(entry.node for entry in node.inputs):
            if source in seen or source in found or any(reader not in seen for reader in readers[source]):
                continue
            if _range_of(source) is not None:
                found.append(source)
            elif isinstance(source.op, _JOINING):
                seen.add(source)
                left.append(source)
        for reader in {*readers[node]} if goes_on else ():
            if reader is not None and reader not in seen and isinstance(reader.op, _JOINING):
                seen.add(reader)
                left.append(reader)
    return found


def _range_of(node: Node) -> Range | None:
    """The range that a node was given."""
    found: Range | None = getattr(node.op, "calibrated", None)
    return found


def _times(node: Node, factor: float) -> dict[str, str]:
    """The ends of a node's range, times a number, as parameters."""
    return {name: f"{factor * getattr(node.op, name):.9g}" for name in _ENDS}


def _has_half_a_range(node: Node, dtypes: Mapping[Entry, Any]) -> bool:
    """True for a sum with an int8 array that gives uint8, of which MXNet's operator uses the lower half."""
    op = node.op
    if not isinstance(op, ConvolutionPart) or not op.with_sum or not op.is_unsigned:
        return False
    return bool(dtypes[node.inputs[len(op.reals()) - 1]] == INT8)


def _takes(node: Node, name: str) -> bool:
    op = node.op
    return op is not None and op.traits.requantizes and name in op.parameters
