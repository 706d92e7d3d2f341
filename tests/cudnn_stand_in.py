"""A stand-in for cuDNN's frontend: it notes the graphs that are built, and computes them on the host.

Tensors are what the dims, strides and addresses that it was given say, so that a wrong one gives wrong numbers (or
reads what it should not). It refuses what the frontend refuses: an operation out of order, a tensor without an address,
dims that do not follow from each other.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from flowmx.ops.dtypes import BY_NAME
from flowmx.ops.registry import Run
from flowmx.ops.windows import Geometry, correlate, spread, weigh
from tests.graph_runs import device

built: list[Graph] = []
"""The graphs that plans were made for."""
handles: list[Any] = []


class cudnnGraphNotSupportedError(RuntimeError):  # noqa: N801 - the frontend's name
    """There is no engine for a graph."""


data_type = SimpleNamespace(FLOAT="float32", DOUBLE="float64", HALF="float16", BFLOAT16="bfloat16")
heur_mode = SimpleNamespace(A="A", FALLBACK="FALLBACK")
build_plan_policy = SimpleNamespace(ALL="ALL", HEURISTICS_CHOICE="HEURISTICS_CHOICE")
numerical_note = SimpleNamespace(DOWN_CONVERT_INPUTS="DOWN_CONVERT_INPUTS", TENSOR_CORE="TENSOR_CORE")


class Tensor:
    """A tensor of a graph."""

    def __init__(self, dim: Sequence[int] = (), stride: Sequence[int] = (), data_type: str = "", uid: int = 0) -> None:
        self.dim, self.stride, self.data_type, self.uid = list(dim), list(stride), data_type, uid
        self.is_output = False

    def set_uid(self, uid: int) -> Tensor:
        self.uid = uid
        return self

    def set_output(self, value: bool) -> Tensor:
        self.is_output = value
        return self

    def set_data_type(self, value: str) -> Tensor:
        self.data_type = value
        return self

    def set_dim(self, dim: list[int]) -> Tensor:
        self.dim = dim
        return self

    def set_stride(self, stride: list[int]) -> Tensor:
        self.stride = stride
        return self

    def array(self, address: int) -> Any:
        """The host's array there."""
        dtype = BY_NAME[self.data_type]
        reach = 1 + sum((length - 1) * step for length, step in zip(self.dim, self.stride, strict=True))
        memory = (ctypes.c_char * (reach * dtype.itemsize)).from_address(address)
        steps = [step * dtype.itemsize for step in self.stride]
        make: Any = np.ndarray
        return make(self.dim, dtype, memory, 0, steps)


class Convolution:
    """One of the three products of images and filters."""

    def __init__(self, method: str, one: Tensor, other: Tensor, windows: dict[str, list[int]]) -> None:
        self.method, self.operands, self.windows = method, [one, other], windows
        self.outputs = [Tensor()]

    def check(self) -> None:
        """Raise where dims do not follow from each other."""
        small, image, filters = self._parts()
        g = self.geometry()
        for axis, (made, length) in enumerate(zip(small.dim[2:], image.dim[2:], strict=True)):
            if made != g.output(axis, length):
                raise cudnnGraphNotSupportedError(f"axis {axis}: {length} gives {g.output(axis, length)}, not {made}")
        assert (small.dim[0], small.dim[1]) == (image.dim[0], filters.dim[0])

    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """What is on the side of the result, of the data, and the filters."""
        (one, other), (output,) = self.operands, self.outputs
        return {
            "conv_fprop": (output, one, other),
            "conv_dgrad": (one, output, other),
            "conv_wgrad": (other, one, output),
        }[self.method]

    def geometry(self) -> Geometry:
        """How the windows lie."""
        _, image, filters = self._parts()
        assert self.windows["pre_padding"] == self.windows["post_padding"]
        strides, dilation, pad = (tuple(self.windows[name]) for name in ("stride", "dilation", "pre_padding"))
        return Geometry(tuple(filters.dim[2:]), strides, dilation, pad, image.dim[1] // filters.dim[1])

    def compute(self, operands: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute it on the host's arrays."""
        (one, other), (out,) = operands, outputs
        compute: Any = {"conv_fprop": correlate, "conv_dgrad": spread, "conv_wgrad": weigh}[self.method]
        given = (other, one) if self.method == "conv_wgrad" else (one, other)
        result = np.empty(out.shape, out.dtype)
        compute(Run(device(np), True), self.geometry(), *map(np.ascontiguousarray, given), result)
        out[...] = result


class Attention:
    """Attention, or its gradients: float64 in the middle, by the statistics that it is given."""

    def __init__(self, method: str, named: dict[str, Tensor | None], scale: float, outputs: int) -> None:
        assert type(scale) is float  # a number of another type is taken for a tensor
        self.method, self.scale = method, scale
        self.named = {name: each for name, each in named.items() if each is not None}
        self.operands, self.outputs = list(self.named.values()), [Tensor() for _ in range(outputs)]

    def check(self) -> None:
        """Raise what the frontend raises, which looks at each tensor."""
        q, k, v = (self.named[name] for name in "qkv")
        (batch, heads, rows, size), columns = q.dim, k.dim[2]
        out = [batch, heads, rows, v.dim[3]]
        stats = [batch, heads, rows, 1]
        expected = {"q": q.dim, "k": [batch, heads, columns, size], "v": [batch, heads, columns, v.dim[3]]}
        expected |= {"o": out, "dO": out, "stats": stats}
        made = [q.dim, k.dim, v.dim] if self.method == "sdpa_backward" else [out, stats]
        for name, each in self.named.items():
            if name == "bias":
                assert each.dim[2:] == [rows, columns]
                assert each.dim[:2] in ([1, 1], [batch, heads], [1, heads], [batch, 1])
            else:
                assert each.dim == expected[name], name
        for output, dims in zip(self.outputs, made, strict=False):
            assert output.dim == dims
        for each in (*self.operands, *self.outputs):
            if each.dim == stats:
                assert each.data_type == "float32"
                assert each.stride == [heads * rows, rows, 1, 1]
            elif each.stride[3] != 1 or each.data_type not in ("float16", "bfloat16"):
                raise cudnnGraphNotSupportedError(f"{each.data_type} of strides {each.stride}")
        if size % 8 or v.dim[3] % 8 or max(size, v.dim[3]) > 128:
            raise cudnnGraphNotSupportedError("hidden_dim should be multiple of 8, at most 128")
        if self.method == "sdpa_backward" and rows == columns == 1:
            raise cudnnGraphNotSupportedError("s_q = s_kv = 1 is not supported.")

    def compute(self, operands: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute it on the host's arrays."""
        for each in (*operands, *outputs):
            assert each.shape[3] == 1 or not any(number % 16 for number in (each.ctypes.data, *each.strides[:3]))
        given = {name: array.astype("float64") for name, array in zip(self.named, operands, strict=True)}
        q, k, v = (given[name] for name in "qkv")
        scores = np.einsum("bhqd,bhkd->bhqk", q, k) * self.scale + given.get("bias", 0.0)
        if self.method == "sdpa":
            stats = np.log(np.exp(scores).sum(axis=3, keepdims=True))
            results = [np.einsum("bhqk,bhkd->bhqd", np.exp(scores - stats), v), stats]
        else:
            weights, head = np.exp(scores - given["stats"]), given["dO"]
            along = (head * given["o"]).sum(axis=3, keepdims=True)
            of_scores = weights * (np.einsum("bhqd,bhkd->bhqk", head, v) - along) * self.scale
            pairs = [("bhqk,bhkd->bhqd", of_scores, k), ("bhqk,bhqd->bhkd", of_scores, q)]
            results = [np.einsum(*each) for each in [*pairs, ("bhqk,bhqd->bhkd", weights, head)]]
        for out, result in zip(outputs, results, strict=False):
            out[...] = result


class Graph:
    """A graph of one operation."""

    def __init__(self, handle: Any = None, **types: str) -> None:
        assert handle in handles
        self.handle, self.types = handle, types
        self.tensors: list[Tensor] = []
        self.operation: Any = None
        self.steps: list[str] = []
        self.refused: list[str] = []
        self.limit = 0
        self.ran: list[int | None] = []

    def tensor(self, name: str, dim: list[int], stride: list[int], uid: int, data_type: str) -> Tensor:
        self.tensors.append(Tensor(dim, stride, data_type, uid))
        return self.tensors[-1]

    def _convolution(self, method: str, one: Tensor, other: Tensor, windows: dict[str, list[int]]) -> Tensor:
        self.operation = made = Convolution(method, one, other, windows)
        return made.outputs[0]

    def conv_fprop(self, image: Tensor, weight: Tensor, **windows: list[int]) -> Tensor:
        return self._convolution("conv_fprop", image, weight, windows)

    def conv_dgrad(self, loss: Tensor, filter: Tensor, **windows: list[int]) -> Tensor:
        return self._convolution("conv_dgrad", loss, filter, windows)

    def conv_wgrad(self, image: Tensor, loss: Tensor, **windows: list[int]) -> Tensor:
        return self._convolution("conv_wgrad", image, loss, windows)

    def sdpa(
        self, q: Tensor, k: Tensor, v: Tensor, is_inference: bool, attn_scale: float, bias: Tensor | None = None
    ) -> list[Tensor | None]:
        named = {"q": q, "k": k, "v": v, "bias": bias}
        self.operation = Attention("sdpa", named, attn_scale, 1 if is_inference else 2)
        return [*self.operation.outputs, None][:2]

    def sdpa_backward(
        self, q: Tensor, k: Tensor, v: Tensor, o: Tensor, dO: Tensor, stats: Tensor,
        attn_scale: float, bias: Tensor | None = None,
    ) -> list[Tensor]:  # fmt: skip
        named = {"q": q, "k": k, "v": v, "o": o, "dO": dO, "stats": stats, "bias": bias}
        self.operation = Attention("sdpa_backward", named, attn_scale, 3)
        return list(self.operation.outputs)

    def _step(self, name: str, after: str) -> None:
        assert (self.steps or [""])[-1] == after, f"{name} after {self.steps}"
        self.steps.append(name)

    def validate(self) -> None:
        self._step("validate", "")
        assert all(each.is_output for each in self.operation.outputs)
        for each in (*self.tensors, *self.operation.outputs):
            assert len(each.dim) == len(each.stride) >= 4
        self.operation.check()

    def build_operation_graph(self) -> None:
        self._step("build_operation_graph", "validate")

    def create_execution_plans(self, modes: list[str]) -> None:
        self._step("create_execution_plans", "build_operation_graph")
        assert modes

    def deselect_numeric_notes(self, notes: list[str]) -> None:
        assert self.steps[-1] == "create_execution_plans"
        self.refused = notes

    def deselect_workspace_greater_than(self, limit: int) -> None:
        assert self.steps[-1] == "create_execution_plans"
        self.limit = limit

    def check_support(self) -> None:
        self._step("check_support", "create_execution_plans")

    def build_plans(self, policy: str) -> None:
        self._step(policy, "check_support")
        built.append(self)

    def get_execution_plan_count(self) -> int:
        return 3

    def get_workspace_size(self) -> int:
        return 256

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        return 256 * index

    def execute(self, pointers: dict[int, int], workspace: int, handle: Any) -> None:
        assert self.steps[-1] == "HEURISTICS_CHOICE"
        assert workspace
        self._compute(pointers, handle, None)

    def execute_plan_at_index(self, pointers: dict[int, int], workspace: int, index: int, handle: Any) -> None:
        assert self.steps[-1] == "ALL"
        if index == 1:
            raise RuntimeError("this plan was not built")
        self._compute(pointers, handle, index)

    def _compute(self, pointers: dict[int, int], handle: Any, index: int | None) -> None:
        assert handle is self.handle
        assert handle.stream is not None
        self.ran.append(index)
        operands, outputs = self.operation.operands, self.operation.outputs
        assert pointers.keys() == {each.uid for each in (*operands, *outputs)}
        self.operation.compute(*[[each.array(pointers[each.uid]) for each in some] for some in (operands, outputs)])


pygraph = Graph


def create_handle() -> Any:
    """A handle, of the current thread."""
    handles.append(SimpleNamespace(stream=None))
    return handles[-1]


def set_stream(handle: Any, stream: int) -> None:
    """Let work go to a stream."""
    handle.stream = stream


class _Event:
    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


cuda = SimpleNamespace(
    runtime=SimpleNamespace(getDevice=lambda: 0),
    get_current_stream=lambda: SimpleNamespace(ptr=7),
    Event=_Event,
    get_elapsed_time=lambda start, stop: 1.0,
)
"""As much of ``cupy.cuda`` as plans need."""
