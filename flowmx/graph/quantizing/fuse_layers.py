"""Fusion of layers with the operators after them, before quantization and after calibration.

The nodes equal those of MXNet's oneDNN backend, so files are interchangeable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flowmx.graph.infer import partial_types
from flowmx.graph.node import Entry, Node, topological
from flowmx.graph.quantizing.measured_ranges import rebuild, with_parameters
from flowmx.graph.subgraph import Body
from flowmx.ops.math.binary import SUMS
from flowmx.ops.math.select import Clip
from flowmx.ops.math.unary import ABSOLUTE
from flowmx.ops.nn.activation import Activation, LeakyReLU
from flowmx.ops.nn.convolution import Convolution
from flowmx.ops.nn.dropout import Dropout
from flowmx.ops.nn.linear import FullyConnected
from flowmx.ops.nn.normalization.batch_norm import BatchNorm
from flowmx.ops.quantization.conversions import Dequantize, Requantize
from flowmx.ops.quantization.quantized_layers import QuantizedConcat, QuantizedPooling
from flowmx.ops.quantization.ranges import INT8, Range
from flowmx.ops.quantization.subgraph_layers import SubgraphConvolution, SubgraphLayer, SubgraphProduct
from flowmx.ops.registry.operators import Operator
from flowmx.ops.registry.traits import Passing

__all__ = ["fuse_layers"]

_ENDS = ("min_calib_range", "max_calib_range")
_CONCATENATING = (QuantizedConcat, QuantizedPooling)
_Next = Callable[[Sequence[Node], Node], str]


def fuse_layers(entries: Sequence[Entry]) -> list[Entry]:
    """Fuse each convolution and each product with the operators after it, as far as possible.

    Operators that only return their input in prediction are removed.
    """
    outputs = rebuild(entries, _skip_identities)
    outputs = _fuse_chains(outputs, Convolution, SubgraphConvolution, _after_convolution)
    outputs = _fuse_chains(outputs, FullyConnected, SubgraphProduct, _after_product)
    return _align_ranges(_fuse_conversions(outputs))


def _skip_identities(node: Node, inputs: tuple[Entry, ...]) -> Entry | None:
    op = node.op
    if (isinstance(op, Dropout) and op.mode == "training") or (
        op is not None and op.traits.passing is Passing.ALWAYS and not op.traits.casts and len(inputs) == 1
    ):
        return inputs[0]
    return None


def _readers(entries: Sequence[Entry]) -> dict[Node, list[Node | None]]:
    """Return the readers of each node, once for each read; None for an output of the graph."""
    readers: dict[Node, list[Node | None]] = {}
    for entry in entries:
        readers.setdefault(entry.node, []).append(None)
    for node in topological(entries):
        for entry in node.inputs:
            readers.setdefault(entry.node, []).append(node)
    return readers


def _fuse_chains(
    entries: Sequence[Entry], first: type[Operator], part: type[SubgraphLayer], flag_of: _Next
) -> list[Entry]:
    """Replace chains that begin with an operator with single nodes."""
    readers = _readers(entries)
    chains: dict[Node, list[Node]] = {}
    flags: dict[Node, dict[str, str]] = {}
    members: set[Node] = set()
    for node in topological(entries):
        if type(node.op) is not first or not _fits(node):
            continue
        chain, chain_flags = [node], {}
        while True:
            users = readers.get(chain[-1], [])
            if len(users) != 1 or users[0] is None or users[0] in members:
                break
            flag = flag_of(chain, users[0])
            if not flag:
                break
            chain_flags[flag] = "true"
            chain.append(users[0])
        members.update(chain)
        chains[chain[-1]], flags[chain[-1]] = chain, chain_flags
    numbers = {last: number for number, last in enumerate(chains)}
    inside = members - set(chains)

    def change(node: Node, inputs: tuple[Entry, ...]) -> Node | None:
        if node in inside:
            sources[node] = inputs
            return None
        if node not in chains:
            return None
        sources[node] = inputs
        return _part(chains[node], sources, part, flags[node], numbers[node])

    sources: dict[Node, tuple[Entry, ...]] = {}
    return rebuild(entries, change)


def _fits(node: Node) -> bool:
    op = node.op
    return not isinstance(op, Convolution) or len(op.kernel) in (2, 3)


def _part(
    chain: Sequence[Node],
    sources: dict[Node, tuple[Entry, ...]],
    part: type[SubgraphLayer],
    flags: dict[str, str],
    number: int,
) -> Node:
    """Return the node that replaces a chain."""
    inputs: list[Entry] = []
    before: Node | None = None
    copies: dict[Node, Node] = {}
    label = {Convolution: "conv", FullyConnected: "fully_connected", BatchNorm: "bn"}
    words = []
    for node in chain:
        inner_inputs: list[Entry] = []
        added: list[Entry] = []
        for index, entry in enumerate(node.inputs):
            if before is not None and entry.node is before:
                inner_inputs.append(Entry(copies[before], 0))
                continue
            source = sources[node][index]
            variable = Entry(
                Node(None, f"{node.name}_{index}" if entry.node.op else entry.node.name, origin=node.origin), 0
            )
            inputs.append(source)
            (added if isinstance(node.op, SUMS) else inner_inputs).append(variable)
        copies[node] = Node(
            node.op, node.name, (*inner_inputs, *added), node.attributes, node.user_parameters, node.origin
        )
        end = "add" if isinstance(node.op, SUMS) else "eltwise" if part is SubgraphProduct else "act"
        words.append(label.get(type(node.op), end))
        before = node
    assert before is not None
    parameters = {name: "True" if part is SubgraphProduct else value for name, value in flags.items()}
    op = part.create(**parameters, subgraphs=(Body([Entry(copies[before], 0)]),))
    return Node(op, f"sg_mkldnn_{'_'.join(words)}_{number}", tuple(inputs), {}, parameters, chain[0].origin)


def _after_convolution(chain: Sequence[Node], node: Node) -> str:
    """Return the flag for a node that may join a convolution and its chain; empty if it may not."""
    op, kinds = node.op, [type(member.op) for member in chain]
    has_sum = any(isinstance(member.op, SUMS) for member in chain)
    if isinstance(op, BatchNorm) and len(chain) == 1:
        return "with_bn" if op.axis == 1 and not op.output_mean_var else ""
    if op is not None and op.name == SUMS[0].name and not has_sum and kinds[-1] in (Convolution, BatchNorm):
        return "with_sum" if [entry.node for entry in node.inputs].count(chain[-1]) == 1 else ""
    if _ends_with_activation(chain):
        return ""
    fits = _is_rectifier(op, ("leaky", "gelu")) or (isinstance(op, Clip) and op.a_min == 0 and not has_sum)
    return ("with_postsum_act" if has_sum else "with_act") if fits else ""


def _after_product(chain: Sequence[Node], node: Node) -> str:
    """Return the flag for a node that may join a product; empty if it may not."""
    op = node.op
    fits = (
        _is_rectifier(op, ("leaky", "elu", "gelu"))
        or isinstance(op, ABSOLUTE)
        or (isinstance(op, Clip) and op.a_min == 0)
    )
    return "with_eltwise" if fits and len(chain) == 1 else ""


def _ends_with_activation(chain: Sequence[Node]) -> bool:
    return isinstance(chain[-1].op, (Activation, LeakyReLU, Clip))


def _is_rectifier(op: object, kinds: Sequence[str]) -> bool:
    return (isinstance(op, Activation) and op.act_type == "relu") or (
        isinstance(op, LeakyReLU) and op.act_type in kinds
    )


def _fuse_conversions(entries: Sequence[Entry]) -> list[Entry]:
    """Fuse conversions to and from int8 into the operators before them, if these support it."""
    readers = _readers(entries)
    moved: set[str] = set()

    def change(node: Node, inputs: tuple[Entry, ...]) -> Node | Entry | None:
        source = inputs[0].node if inputs else node
        if isinstance(node.op, Requantize) and node.op.calibrated is not None and _takes(source, _ENDS[0]):
            users = {*readers[node]}
            only = next(iter(users)) if len(users) == 1 else None
            if only is not None and isinstance(only.op, Dequantize) and _takes(source, "enable_float_output"):
                return with_parameters(source, source.inputs, enable_float_output="True")
            moved.add(source.name)
            return with_parameters(source, source.inputs, **_scaled_range(node, 1))
        if isinstance(node.op, Dequantize) and getattr(source.op, "enable_float_output", False):
            return Entry(source, 0)
        return None

    outputs = rebuild(entries, change)
    dtypes = partial_types(topological(outputs), {})

    def widen(node: Node, inputs: tuple[Entry, ...]) -> Node | None:
        is_half = node.name in moved and _uses_half_range(node, dtypes)
        return with_parameters(node, inputs, **_scaled_range(node, 2)) if is_half else None

    return rebuild(outputs, widen)


def _align_ranges(entries: Sequence[Entry]) -> list[Entry]:
    """Give all inputs of a concatenation the same range, so that concatenating only copies.

    The range extends through pooling and further concatenations, for values that nothing else reads.
    """
    readers = _readers(entries)
    ends: dict[Node, Range] = {}
    for node in topological(entries):
        if isinstance(node.op, QuantizedConcat):
            sources = _concat_sources(node, readers)
            ranges = [ends.get(source, _range_of(source)) for source in sources]
            lows, highs = zip(*[item for item in ranges if item is not None], strict=True) if ranges else ((), ())
            if len(sources) > 1:
                ends.update(dict.fromkeys(sources, (min(np.float32(0), *lows), max(np.float32(0), *highs))))

    def change(node: Node, inputs: tuple[Entry, ...]) -> Node | None:
        if node not in ends:
            return None
        parameters = {name: f"{end:.9g}" for name, end in zip(_ENDS, ends[node], strict=True)}
        return with_parameters(node, inputs, **parameters)

    return rebuild(entries, change)


def _concat_sources(join: Node, readers: Mapping[Node, Sequence[Node | None]]) -> list[Node]:
    """Return the nodes with ranges whose values a node concatenates, and those concatenated with them later."""
    visited, sources, queue = {join}, [], [join]
    has_one_reader = len({*readers[join]}) == 1
    while queue:
        node = queue.pop(0)
        for source in dict.fromkeys(entry.node for entry in node.inputs):
            if source in visited or source in sources or any(reader not in visited for reader in readers[source]):
                continue
            if _range_of(source) is not None:
                sources.append(source)
            elif isinstance(source.op, _CONCATENATING):
                visited.add(source)
                queue.append(source)
        for reader in {*readers[node]} if has_one_reader else ():
            if reader is not None and reader not in visited and isinstance(reader.op, _CONCATENATING):
                visited.add(reader)
                queue.append(reader)
    return sources


def _range_of(node: Node) -> Range | None:
    """Return the calibrated range of a node, or None."""
    calibrated: Range | None = getattr(node.op, "calibrated", None)
    return calibrated


def _scaled_range(node: Node, factor: float) -> dict[str, str]:
    """Return the ends of a node's range times a factor, as parameters."""
    return {name: f"{factor * getattr(node.op, name):.9g}" for name in _ENDS}


def _uses_half_range(node: Node, dtypes: Mapping[Entry, Any]) -> bool:
    """Return whether this is a sum with an int8 array and uint8 output, of which MXNet uses the lower half."""
    op = node.op
    if not isinstance(op, SubgraphConvolution) or not op.with_sum or not op.is_unsigned:
        return False
    return bool(dtypes[node.inputs[len(op.array_names()) - 1]] == INT8)


def _takes(node: Node, name: str) -> bool:
    op = node.op
    return op is not None and op.traits.requantizes and name in op.parameters
