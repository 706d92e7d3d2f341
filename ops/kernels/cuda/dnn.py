"""cuDNN through its frontend's graphs: requests, and the plans for them, cached by the layouts of the arrays.

Nothing is loaded before the first call. If the frontend or cuDNN is missing, one message says what to install, and the
operators' forwards run. A handle belongs to one thread and one GPU; work is launched on CuPy's current stream.
"""

from __future__ import annotations

import importlib
import logging
import math
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, NamedTuple

from flowmx import settings
from flowmx.bounded_tables import make_room
from flowmx.devices.cuda.memory import address_of
from flowmx.ops.registry.dtypes import NAMES, DType
from flowmx.ops.registry.operators import Array, Shape
from flowmx.ops.registry.tensors import ArrayNamespace

_log = logging.getLogger("flowmx.kernels")
_local = threading.local()
_DATA_TYPES = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "HALF", "bfloat16": "BFLOAT16"}
NO_LIMIT = 1 << 62
"""No limit for the workspace."""
_ROUNDS = 3
"""Timed runs of a plan, after one warm-up run."""


class Tensor(NamedTuple):
    """The layout of an array; strides are counted in elements."""

    shape: Shape
    strides: Shape
    dtype: DType


class GraphRequest(NamedTuple):
    """A request for a cuDNN graph.

    Attributes:
        build: called as ``build(graph, tensors)``; adds the operation and returns its results.
        key: the cache key.
        inputs, outputs: the layouts of the arrays.
        limit: the maximum workspace in bytes.
        tune: whether to time all plans.
    """

    build: Callable[[Any, list[Any]], Sequence[Any]]
    key: Any
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    limit: int
    tune: bool


@cache
def is_installed() -> bool:
    """Return whether cuDNN's frontend is installed, without loading it."""
    return find_spec("cudnn") is not None


@cache
def library() -> Any:
    """Return the frontend's module; None if it is missing, which is logged once."""
    try:
        return importlib.import_module("cudnn")
    except Exception as error:  # the optional library may fail in any way
        _log.warning(
            "cuDNN cannot be used (%s: %s): convolutions on a GPU run as matrix products, several times slower; "
            "install it with 'pip install nvidia-cudnn-frontend nvidia-cudnn-cu13' (or -cu12, to match CuPy)",
            type(error).__name__,
            error,
        )
        return None


class Plan:
    """A graph with an execution plan.

    Args:
        graph: the frontend's graph, built.
        index: the index of the plan; None for the graph's choice.
        workspace: the size of the workspace in bytes.
    """

    def __init__(self, graph: Any, index: int | None, workspace: int) -> None:
        self._graph = graph
        self._index = index
        self._workspace = workspace

    def run(self, xp: Any, handle: Any, arrays: Sequence[Array]) -> None:
        """Launch the plan on arrays, inputs first."""
        pointers = {uid + 1: address_of(array) for uid, array in enumerate(arrays)}
        # The memory may return to the pool at once: its next user on this stream runs later.
        room = xp.empty(self._workspace, "uint8") if self._workspace else None
        address = 0 if room is None else address_of(room)
        if self._index is None:
            self._graph.execute(pointers, address, handle=handle)
        else:
            self._graph.execute_plan_at_index(pointers, address, self._index, handle=handle)


_plans: dict[object, Plan | None] = {}
_MAX_PLANS = 2048


def run(xp: Any, request: GraphRequest, arrays: Sequence[Array]) -> bool:
    """Compute a graph on arrays of its layouts; return False, without effect, if cuDNN cannot.

    Args:
        xp: cupy.
        request: the graph.
        arrays: the inputs, then the outputs.
    """
    cudnn = library()
    if cudnn is None:
        return False
    handle = _handle(cudnn, xp)
    if handle is None:
        return False
    tensor_cores = settings.get().cuda_allow_tensor_core
    key = (
        xp.cuda.runtime.getDevice(),
        request.key,
        request.inputs,
        request.outputs,
        request.limit,
        request.tune,
        tensor_cores,
    )
    try:
        plan = _plans[key]
    except KeyError:
        make_room(_plans, _MAX_PLANS)
        plan = _plans.setdefault(key, _plan(cudnn, xp, handle, request, arrays))
    if plan is None:
        return False
    plan.run(xp, handle, arrays)
    return True


def _handle(cudnn: Any, xp: Any) -> Any:
    """Return this thread's handle for the current GPU, on the current stream; None if cuDNN is missing."""
    handles: dict[int, Any] = _local.__dict__.setdefault("handles", {})
    number = xp.cuda.runtime.getDevice()
    if number not in handles:
        try:
            handles[number] = cudnn.create_handle()
        except Exception as error:  # the optional library may fail in any way
            handles[number] = None
            _log.error(
                "cuDNN cannot be used (%s: %s); 'pip install nvidia-cudnn-cu13' (or -cu12, to match CuPy) installs it",
                type(error).__name__,
                error,
            )
    handle = handles[number]
    if handle is not None:
        cudnn.set_stream(handle=handle, stream=xp.cuda.get_current_stream().ptr)
    return handle


def _plan(cudnn: Any, xp: ArrayNamespace, handle: Any, request: GraphRequest, arrays: Sequence[Array]) -> Plan | None:
    """Build a graph's plans and choose one; return None if cuDNN offers no plan."""
    try:
        graph = _graph(cudnn, handle, request)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.deselect_numeric_notes(_excluded_notes(cudnn, request.inputs[0].dtype))
        graph.deselect_workspace_greater_than(request.limit)
        graph.check_support()
        policy = cudnn.build_plan_policy
        graph.build_plans(policy.ALL if request.tune else policy.HEURISTICS_CHOICE)
        if request.tune:
            return _fastest(xp, handle, graph, arrays)
        return Plan(graph, None, graph.get_workspace_size())
    except (cudnn.cudnnGraphNotSupportedError, RuntimeError, ValueError, NotImplementedError) as error:
        _log.info("cuDNN has no plan for %s of %s: %s", request.key, [each.shape for each in request.inputs], error)
        return None


def _graph(cudnn: Any, handle: Any, request: GraphRequest) -> Any:
    kinds = cudnn.data_type
    dtype = request.inputs[0].dtype
    io = getattr(kinds, _DATA_TYPES[NAMES[dtype]])
    compute = kinds.DOUBLE if dtype.itemsize == 8 else kinds.FLOAT
    graph = cudnn.pygraph(
        handle=handle, io_data_type=io, intermediate_data_type=compute, compute_data_type=compute
    )  # fmt: skip
    tensors = [
        graph.tensor(
            name=f"input{index}", dim=list(each.shape), stride=list(each.strides), uid=index + 1,
            data_type=getattr(kinds, _DATA_TYPES[NAMES[each.dtype]]),
        )
        for index, each in enumerate(request.inputs)
    ]  # fmt: skip
    for index, (result, each) in enumerate(zip(request.build(graph, tensors), request.outputs, strict=True)):
        result.set_uid(len(tensors) + index + 1).set_output(True)
        result.set_data_type(getattr(kinds, _DATA_TYPES[NAMES[each.dtype]]))
        result.set_dim(list(each.shape)).set_stride(list(each.strides))
    return graph


def _excluded_notes(cudnn: Any, dtype: DType) -> list[Any]:
    """Return the notes of plans to exclude: float32 is never rounded to 16 bits, and to TF32 only if settings allow."""
    notes = cudnn.numerical_note
    excluded = [notes.DOWN_CONVERT_INPUTS] if dtype.itemsize > 2 else []
    if not settings.get().cuda_allow_tensor_core:
        excluded.append(notes.TENSOR_CORE)
    return excluded


def _fastest(xp: ArrayNamespace, handle: Any, graph: Any, arrays: Sequence[Array]) -> Plan | None:
    """Return the fastest plan on these arrays; the outputs are overwritten repeatedly."""
    best: Plan | None = None
    shortest = math.inf
    for index in range(graph.get_execution_plan_count()):
        try:
            plan = Plan(graph, index, graph.get_workspace_size_plan_at_index(index))
            plan.run(xp, handle, arrays)
            elapsed = _measure(xp, partial(plan.run, xp, handle, arrays))
        except (RuntimeError, ValueError, MemoryError):
            continue  # not built, or it needs too much workspace
        if elapsed < shortest:
            best, shortest = plan, elapsed
    return best


def _measure(xp: Any, call: Callable[[], None]) -> float:
    """Return the milliseconds of a few calls on the GPU."""
    start, stop = xp.cuda.Event(), xp.cuda.Event()
    start.record()
    for _ in range(_ROUNDS):
        call()
    stop.record()
    stop.synchronize()
    elapsed: float = xp.cuda.get_elapsed_time(start, stop)
    return elapsed
