"""A stand-in for cuDNN's frontend: it records the graphs that are built, and computes them on the host.

Tensors follow the dims, strides and addresses that are passed, so that a wrong one gives wrong numbers (or reads out of
bounds). It rejects what the frontend rejects: an operation out of order, a tensor without an address, inconsistent
dims.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.cudnn_operations import Attention, Convolution, Tensor
from tests.cudnn_operations import cudnnGraphNotSupportedError as cudnnGraphNotSupportedError

built: list[Graph] = []
"""The graphs that plans were made for."""
handles: list[Any] = []


data_type = SimpleNamespace(FLOAT="float32", DOUBLE="float64", HALF="float16", BFLOAT16="bfloat16")
heur_mode = SimpleNamespace(A="A", FALLBACK="FALLBACK")
build_plan_policy = SimpleNamespace(ALL="ALL", HEURISTICS_CHOICE="HEURISTICS_CHOICE")
numerical_note = SimpleNamespace(DOWN_CONVERT_INPUTS="DOWN_CONVERT_INPUTS", TENSOR_CORE="TENSOR_CORE")


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
        self.operation = convolution = Convolution(method, one, other, windows)
        return convolution.outputs[0]

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
    """Create a handle for the current thread."""
    handles.append(SimpleNamespace(stream=None))
    return handles[-1]


def set_stream(handle: Any, stream: int) -> None:
    """Set the stream of a handle."""
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
"""The part of ``cupy.cuda`` that plans need."""
