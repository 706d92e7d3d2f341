"""cuDNN, by its frontend's graphs: what it is asked for, and the plans that it made, each kept for arrays of its form.

Nothing is loaded before the first call. Where the frontend or cuDNN itself is missing, a message says once what to
install, and plain forwards run. A handle belongs to one thread and one GPU; work goes to CuPy's current stream.
"""

from __future__ import annotations

import importlib
import logging
import math
import threading
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

from flowmx import settings
from flowmx.ops.registry.dtypes import NAMES, DType
from flowmx.ops.registry.operators import Array, Shape

_log = logging.getLogger("flowmx.kernels")
_local = threading.local()
_DATA_TYPES = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "HALF", "bfloat16": "BFLOAT16"}
NO_LIMIT = 1 << 62
"""Any workspace."""
_ROUNDS = 3
"""Timed runs of a plan, after one that does not count."""


class Tensor(NamedTuple):
    """The layout of an array; strides are counted in elements."""

    shape: Shape
    strides: Shape
    dtype: DType


class Asked(NamedTuple):
    """A request for a cuDNN graph.

    Attributes:
        build: called as ``build(graph, tensors)``; adds the operation and gives its results.
        key: its cache key.
        inputs, outputs: what goes in and comes out.
        limit: bytes of workspace, at most.
        tune: whether to time all plans.
    """

    build: Callable[[Any, list[Any]], Sequence[Any]]
    key: Any
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    limit: int
    tune: bool


@cache
def is_there() -> bool:
    """Tell whether cuDNN's frontend is installed, without loading it."""
    return find_spec("cudnn") is not None


@cache
def library() -> Any:
    """The frontend's module; None where it is missing, which is logged once."""
    try:
        return importlib.import_module("cudnn")
    except Exception as error:
        _log.warning(
            "cuDNN cannot be used (%s: %s): convolutions on a GPU run by plain products, several times slower; "
            "'pip install nvidia-cudnn-frontend nvidia-cudnn-cu13' (or -cu12, as CuPy) makes them fast",
            type(error).__name__,
            error,
        )
        return None


class Plan:
    """A graph with the engine that runs it.

    Args:
        graph: the frontend's, built.
        index: which of its plans; None for the one it chose.
        workspace: bytes that it works in.
    """

    def __init__(self, graph: Any, index: int | None, workspace: int) -> None:
        self._graph = graph
        self._index = index
        self._workspace = workspace

    def run(self, xp: Any, handle: Any, arrays: Sequence[Array]) -> None:
        """Launch it on arrays, inputs first."""
        pointers = {uid + 1: array.data.ptr for uid, array in enumerate(arrays)}
        # It may go back to the pool at once: who gets it next on this stream comes after.
        room = xp.empty(self._workspace, "uint8") if self._workspace else None
        address = 0 if room is None else room.data.ptr
        if self._index is None:
            self._graph.execute(pointers, address, handle=handle)
        else:
            self._graph.execute_plan_at_index(pointers, address, self._index, handle=handle)


_plans: dict[Any, Plan | None] = {}
_MOST_PLANS = 2048


def run(xp: Any, asked: Asked, arrays: Sequence[Array]) -> bool:
    """Compute a graph on arrays of its layouts; False, and nothing is done, where cuDNN cannot.

    Args:
        xp: cupy.
        asked: the graph.
        arrays: those of the inputs, then of the outputs.
    """
    cudnn = library()
    if cudnn is None:
        return False
    handle = _handle(cudnn, xp)
    if handle is None:
        return False
    allowed = settings.get().cuda_allow_tensor_core
    key = (xp.cuda.runtime.getDevice(), asked.key, asked.inputs, asked.outputs, asked.limit, asked.tune, allowed)
    try:
        plan = _plans[key]
    except KeyError:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        plan = _plans.setdefault(key, _plan(cudnn, xp, handle, asked, arrays))
    if plan is None:
        return False
    plan.run(xp, handle, arrays)
    return True


def _handle(cudnn: Any, xp: Any) -> Any:
    """This thread's handle for the current GPU, on the current stream; None where cuDNN itself is missing."""
    handles: dict[int, Any] = _local.__dict__.setdefault("handles", {})
    number = xp.cuda.runtime.getDevice()
    if number not in handles:
        try:
            handles[number] = cudnn.create_handle()
        except Exception as error:
            handles[number] = None
            _log.error(
                "cuDNN cannot be used (%s: %s); 'pip install nvidia-cudnn-cu13' (or -cu12, as CuPy) helps",
                type(error).__name__,
                error,
            )
    handle = handles[number]
    if handle is not None:
        cudnn.set_stream(handle=handle, stream=xp.cuda.get_current_stream().ptr)
    return handle


def _plan(cudnn: Any, xp: Any, handle: Any, asked: Asked, arrays: Sequence[Array]) -> Plan | None:
    """Build a graph's plans and choose one; None where there is none."""
    try:
        graph = _graph(cudnn, handle, asked)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.deselect_numeric_notes(_refused(cudnn, asked.inputs[0].dtype))
        graph.deselect_workspace_greater_than(asked.limit)
        graph.check_support()
        policy = cudnn.build_plan_policy
        graph.build_plans(policy.ALL if asked.tune else policy.HEURISTICS_CHOICE)
        if asked.tune:
            return _fastest(xp, handle, graph, arrays)
        return Plan(graph, None, graph.get_workspace_size())
    except (cudnn.cudnnGraphNotSupportedError, RuntimeError, ValueError, NotImplementedError) as error:
        _log.info("cuDNN has no plan for %s of %s: %s", asked.key, [each.shape for each in asked.inputs], error)
        return None


def _graph(cudnn: Any, handle: Any, asked: Asked) -> Any:
    kinds = cudnn.data_type
    dtype = asked.inputs[0].dtype
    io = getattr(kinds, _DATA_TYPES[NAMES[dtype]])
    compute = kinds.DOUBLE if dtype.itemsize == 8 else kinds.FLOAT
    graph = cudnn.pygraph(
        handle=handle, io_data_type=io, intermediate_data_type=compute, compute_data_type=compute
    )  # fmt: skip
    given = [
        graph.tensor(
            name=f"input{at}", dim=list(each.shape), stride=list(each.strides), uid=at + 1,
            data_type=getattr(kinds, _DATA_TYPES[NAMES[each.dtype]]),
        )
        for at, each in enumerate(asked.inputs)
    ]  # fmt: skip
    for at, (made, each) in enumerate(zip(asked.build(graph, given), asked.outputs, strict=True)):
        made.set_uid(len(given) + at + 1).set_output(True)
        made.set_data_type(getattr(kinds, _DATA_TYPES[NAMES[each.dtype]]))
        made.set_dim(list(each.shape)).set_stride(list(each.strides))
    return graph


def _refused(cudnn: Any, dtype: DType) -> list[Any]:
    """The notes of plans to exclude: float32 is never rounded to 16 bits, and to TF32 only if settings allow."""
    notes = cudnn.numerical_note
    found = [notes.DOWN_CONVERT_INPUTS] if dtype.itemsize > 2 else []
    if not settings.get().cuda_allow_tensor_core:
        found.append(notes.TENSOR_CORE)
    return found


def _fastest(xp: Any, handle: Any, graph: Any, arrays: Sequence[Array]) -> Plan | None:
    """The plan that takes the least time on these arrays, whose outputs are written over and over."""
    best: Plan | None = None
    least = math.inf
    for index in range(graph.get_execution_plan_count()):
        try:
            plan = Plan(graph, index, graph.get_workspace_size_plan_at_index(index))
            plan.run(xp, handle, arrays)
            taken = _timed(xp, lambda plan=plan: plan.run(xp, handle, arrays))  # type: ignore[misc]
        except (RuntimeError, ValueError, MemoryError):
            continue  # one that was not built, or needs too much
        if taken < least:
            best, least = plan, taken
    return best


def _timed(xp: Any, call: Callable[[], None]) -> float:
    """Milliseconds of a few calls on the GPU."""
    start, stop = xp.cuda.Event(), xp.cuda.Event()
    start.record()
    for _ in range(_ROUNDS):
        call()
    stop.record()
    stop.synchronize()
    taken: float = xp.cuda.get_elapsed_time(start, stop)
    return taken
