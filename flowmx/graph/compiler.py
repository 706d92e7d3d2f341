"""The compiler: from a symbol with known shapes to a plan, through all the passes.

Pure, as the passes are: no device is touched and nothing allocated, so a plan also tells what a network would need.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from flowmx import settings
from flowmx.devices import Context, Device
from flowmx.graph.gradient import gradient
from flowmx.graph.graph import Graph, Options, ranked
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.attention import fuse_attention
from flowmx.graph.passes.chains import fuse_chains
from flowmx.graph.passes.fold import fold_normalization
from flowmx.graph.passes.fold_int8 import settle
from flowmx.graph.passes.fuse import fuse
from flowmx.graph.passes.identities import drop_identities
from flowmx.graph.passes.join_int8 import join_bytes
from flowmx.graph.passes.pack import pack_filters
from flowmx.graph.passes.placement import place
from flowmx.graph.passes.pooling_indices import note_maxima
from flowmx.graph.passes.recompute import recompute
from flowmx.graph.passes.simplify import fold_constants, merge_common
from flowmx.graph.passes.widen import widen
from flowmx.graph.plan import Plan, make_plan
from flowmx.graph.planning import micro, room, slices
from flowmx.graph.planning.order import ordered
from flowmx.ops import kernels
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Shape

Pass = Callable[[Graph, Options], Graph]

PASSES: list[Pass] = [
    place,
    settle,
    join_bytes,
    widen,
    fold_constants,
    drop_identities,
    merge_common,
    fold_normalization,
    fuse,
    fuse_chains,
    note_maxima,
    recompute,
    pack_filters,
]
"""The passes over every graph, in the order in which they run."""


def graph_of(
    entries: Sequence[Entry],
    wanted: Collection[Node],
    shapes: Mapping[Entry, Shape],
    dtypes: Mapping[Entry, DType],
    train: bool,
    default: Context | None = None,
    groups: Mapping[str, Context] | None = None,
) -> Graph:
    """The graph of outputs and of the gradients for some variables, before any pass but the one for attention.

    Args:
        entries: the outputs.
        wanted: the variables to differentiate by.
        shapes: of every entry that the outputs need.
        dtypes: likewise.
        train: whether it will run in training mode.
        default: the device.
        groups: the devices of the ``ctx_group``s.

    Raises:
        AutogradError: an operator on the way has no gradient.
    """
    plain = Graph(tuple(entries), {}, shapes, dtypes, train, groups=dict(groups or {}), default=default)
    graph = fuse_attention(ranked(plain), wanted)
    entries, all_shapes, all_dtypes = graph.outputs, dict(graph.shapes), dict(graph.dtypes)
    heads: list[Node] = []
    gradients: dict[Node, Entry] = {}
    if wanted:
        # The gradient of each output is a variable of its own: ones, unless the user gives others.
        for entry in entries:
            head = Node(
                None, f"{entry.node.output_name(entry.index)}_grad", attributes=entry.node.attributes,
                origin=entry.node.origin,
            )  # fmt: skip
            heads.append(head)
            all_shapes[Entry(head, 0)], all_dtypes[Entry(head, 0)] = all_shapes[entry], all_dtypes[entry]
        gradients = gradient(entries, [Entry(head, 0) for head in heads], wanted, all_shapes, all_dtypes)
    return replace(graph, gradients=gradients, shapes=all_shapes, dtypes=all_dtypes, heads=tuple(heads))


def compile_graph(
    graph: Graph,
    straight: Collection[Node] = (),
    strided: Collection[Node] = (),
    options: Options | None = None,
    external: Collection[Entry] | None = None,
    begin: Callable[[Graph, Options], None] | None = None,
) -> Plan:
    """Run the passes, and plan what they make.

    Args:
        graph: as :func:`graph_of` makes it.
        straight: the variables whose gradient may be written straight to the user's array.
        strided: the variables whose arrays do not lie densely in C order.
        options: how; by default as the settings say, for the CPU.
        external: the entries to get memory from outside, if not all outputs.
        begin: called with what the passes make, before it is planned.
    """
    options = options or options_of("cpu")
    graph = replace(graph, straight=frozenset(straight))
    trains = options.budget is not None and bool(graph.gradients) and not graph.groups
    cuts = not graph.groups and slices.may_be_cut(graph, options)
    for each in PASSES:
        graph = each(graph, replace(options, budget=None) if trains or cuts else options)
    if begin is not None:
        begin(graph, options)
    if external is None:
        external = {entry for entry in graph.outputs if _is_computed(entry)}
        external |= _written_straight(graph, straight)
    if trains:
        return micro.fit(graph, external, strided, options)
    schedule = ordered(graph)
    sliced = slices.cut(graph, schedule, external, strided, options)
    made = None
    if sliced is not None:
        made = make_plan(sliced.graph, sliced.external, strided, options, (sliced.order, []))
        if options.slice < 0 and made.internal_bytes() + slices.LEAST > sliced.whole:
            made = None
    made = made or make_plan(graph, external, strided, options, schedule[:2])
    return room.fit(graph, schedule, external, strided, options, made) if cuts else made


def options_of(device_type: str) -> Options:
    """Compile options from the settings, for a type of device."""
    config = settings.get()
    return Options(
        device_type=device_type,
        in_place=config.exec_enable_inplace,
        share=config.exec_match_range > 0,
        workspaces=config.exec_num_temp,
        channels_last=kernels.like_channels_last(device_type),
        multiplied=kernels.multiplied(device_type),
        workers=config.cpu_worker_nthreads if device_type == "cpu" else config.gpu_worker_nthreads,
        merge=settings.fresh("eliminate_common_expr"),
        mirror=config.backward_do_mirror,
        budget=config.exec_memory_budget or None,
        slice=config.exec_slice,
    )


def in_room(options: Options, device: Device, coming: int = 0, held: int = 0) -> Options:
    """Options for a prediction, with what there is room for on the device now.

    Args:
        options: those of its kernels.
        device: where it will run.
        coming: bytes of arrays that will take memory there before it does.
        held: bytes there that it may work in, or that are given back before it takes others.
    """
    if not device.is_asynchronous:
        return options
    free, total = device.memory_info()
    if free < total // 2:
        gc.collect()  # as where memory is asked for that is not there: an executor that is gone may still hold some
        free, _ = device.memory_info()
    free = max(0, free + held - coming)
    return replace(options, room=max(held, int((1 - room.SPARE) * free)), staged=device.replays)


def _is_computed(entry: Entry) -> bool:
    """Tell whether each run computes an entry: it is neither a variable nor kept from run to run."""
    return entry.node.op is not None and not entry.node.op.traits.once


def _written_straight(graph: Graph, straight: Collection[Node]) -> set[Entry]:
    """Gradients that their operator can write into the user's array."""
    forward = set(graph.forward())
    counts: dict[Entry, int] = {}
    for entry in graph.gradients.values():
        counts[entry] = counts.get(entry, 0) + 1
    return {
        entry
        for node, entry in graph.gradients.items()
        if node in straight
        and counts[entry] == 1
        and entry.node not in forward
        and _is_computed(entry)
        and graph.dtypes[entry] == graph.dtypes[Entry(node, 0)]
    }
