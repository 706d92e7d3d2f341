"""The compiler: all passes, from a symbol with known shapes to a plan.

Like the passes, it is pure: it touches no device and allocates nothing, so a plan also shows the needs of a network.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from flowmx import settings
from flowmx.devices import Context, Device
from flowmx.graph.gradient import gradient
from flowmx.graph.graph import Graph, Options, rank_effects
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.attention import fuse_attention
from flowmx.graph.passes.chains import fuse_chains
from flowmx.graph.passes.common_subexpressions import merge_common
from flowmx.graph.passes.constant_folding import fold_constants
from flowmx.graph.passes.fold_batch_norm import fold_normalization
from flowmx.graph.passes.fold_int8 import fold_int8
from flowmx.graph.passes.fuse import fuse
from flowmx.graph.passes.identities import drop_identities
from flowmx.graph.passes.join_int8 import join_bytes
from flowmx.graph.passes.join_normalization import join_normalization
from flowmx.graph.passes.pack_weights import pack_filters
from flowmx.graph.passes.placement import place
from flowmx.graph.passes.pooling_indices import record_pooling_indices
from flowmx.graph.passes.positions import move_strides, pool_first
from flowmx.graph.passes.recompute import recompute
from flowmx.graph.passes.widen import widen
from flowmx.graph.plan import Plan, make_plan
from flowmx.graph.planning import device_memory, micro_batches, slices
from flowmx.graph.planning.order import make_schedule
from flowmx.ops import kernels
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Shape

Pass = Callable[[Graph, Options], Graph]

PASSES: list[Pass] = [
    place,
    fold_int8,
    join_bytes,
    widen,
    fold_constants,
    drop_identities,
    merge_common,
    fold_normalization,
    fuse,
    move_strides,
    pool_first,
    join_normalization,
    fuse_chains,
    record_pooling_indices,
    recompute,
    pack_filters,
]
"""The passes that run over every graph, in order."""


def graph_of(
    entries: Sequence[Entry],
    variables: Collection[Node],
    shapes: Mapping[Entry, Shape],
    dtypes: Mapping[Entry, DType],
    train: bool,
    default: Context | None = None,
    groups: Mapping[str, Context] | None = None,
) -> Graph:
    """Return the graph of outputs and of gradients for some variables, before any pass except the fusion of attention.

    Args:
        entries: the outputs.
        variables: the differentiated variables.
        shapes: the shape of every entry that the outputs need.
        dtypes: the dtype of every entry that the outputs need.
        train: whether it will run in training mode.
        default: the device.
        groups: the devices of the ``ctx_group``s.

    Raises:
        AutogradError: an operator on the path has no gradient.
    """
    plain = Graph(tuple(entries), {}, shapes, dtypes, train, groups=dict(groups or {}), default=default)
    graph = fuse_attention(rank_effects(plain), variables)
    entries, all_shapes, all_dtypes = graph.outputs, dict(graph.shapes), dict(graph.dtypes)
    heads: list[Node] = []
    gradients: dict[Node, Entry] = {}
    if variables:
        # The gradient of each output is a variable: ones, unless the user passes others.
        for entry in entries:
            head = Node(
                None, f"{entry.node.output_name(entry.index)}_grad", attributes=entry.node.attributes,
                origin=entry.node.origin,
            )  # fmt: skip
            heads.append(head)
            all_shapes[Entry(head, 0)], all_dtypes[Entry(head, 0)] = all_shapes[entry], all_dtypes[entry]
        gradients = gradient(entries, [Entry(head, 0) for head in heads], variables, all_shapes, all_dtypes)
    return replace(graph, gradients=gradients, shapes=all_shapes, dtypes=all_dtypes, heads=tuple(heads))


def compile_graph(
    graph: Graph,
    direct: Collection[Node] = (),
    strided: Collection[Node] = (),
    options: Options | None = None,
    external: Collection[Entry] | None = None,
    begin: Callable[[Graph, Options], None] | None = None,
) -> Plan:
    """Run the passes and plan their result.

    Args:
        graph: the result of :func:`graph_of`.
        direct: the variables whose gradient may be written directly to the user's array.
        strided: the variables whose arrays are not dense in C order.
        options: the options (default: from the settings, for the CPU).
        external: the entries with external memory (default: all outputs).
        begin: called with the result of the passes, before planning.
    """
    options = options or options_of("cpu")
    graph = replace(graph, direct=frozenset(direct))
    trains = options.budget is not None and bool(graph.gradients) and not graph.groups
    cuts = not graph.groups and slices.may_be_cut(graph, options)
    for graph_pass in PASSES:
        graph = graph_pass(graph, replace(options, budget=None) if trains or cuts else options)
    if begin is not None:
        begin(graph, options)
    if external is None:
        external = {entry for entry in graph.outputs if _is_computed(entry)}
        external |= _direct_gradients(graph, direct)
    if trains:
        return micro_batches.fit(graph, external, strided, options)
    schedule = make_schedule(graph)
    sliced = slices.cut(graph, schedule, external, strided, options)
    plan = None
    if sliced is not None:
        plan = make_plan(sliced.graph, sliced.external, strided, options, (sliced.order, []))
        if options.slice < 0 and plan.internal_bytes() + slices.MIN_SAVED > sliced.whole:
            plan = None
    plan = plan or make_plan(graph, external, strided, options, schedule[:2])
    return device_memory.fit(graph, schedule, external, strided, options, plan) if cuts else plan


def options_of(device_type: str) -> Options:
    """Return compiler options from the settings, for a device type."""
    config = settings.get()
    return Options(
        device_type=device_type,
        in_place=config.exec_enable_inplace,
        share=config.exec_match_range > 0,
        workspaces=config.exec_num_temp,
        channels_last=kernels.channels_last_dtypes(device_type),
        product_dtypes=kernels.product_dtypes(device_type),
        workers=config.cpu_worker_nthreads if device_type == "cpu" else config.gpu_worker_nthreads,
        merge=settings.fresh("eliminate_common_expr"),
        mirror=config.backward_do_mirror,
        budget=config.exec_memory_budget or None,
        slice=config.exec_slice,
    )


def with_memory_limit(options: Options, device: Device, expected: int = 0, held: int = 0) -> Options:
    """Return options for a prediction, limited by the free memory of the device.

    Args:
        options: the compiler options.
        device: the device that it will run on.
        expected: the size of the arrays that will be allocated there first, in bytes.
        held: bytes there that it may reuse, or that are released before it allocates more.
    """
    if not device.is_asynchronous:
        return options
    free, total = device.memory_info()
    if free < total // 2:
        gc.collect()  # unreachable executors may still hold memory
        free, _ = device.memory_info()
    free = max(0, free + held - expected)
    return replace(options, room=max(held, int((1 - device_memory.SPARE) * free)), staged=device.replays)


def _is_computed(entry: Entry) -> bool:
    """Return whether each run computes an entry: it is neither a variable nor kept between runs."""
    return entry.node.op is not None and not entry.node.op.traits.once


def _direct_gradients(graph: Graph, direct: Collection[Node]) -> set[Entry]:
    """Return the gradients that their operator can write directly to the user's array."""
    forward = set(graph.forward())
    counts: dict[Entry, int] = {}
    for entry in graph.gradients.values():
        counts[entry] = counts.get(entry, 0) + 1
    return {
        entry
        for node, entry in graph.gradients.items()
        if node in direct
        and counts[entry] == 1
        and entry.node not in forward
        and _is_computed(entry)
        and graph.dtypes[entry] == graph.dtypes[Entry(node, 0)]
    }
