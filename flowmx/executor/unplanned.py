"""The base class of executors that run a symbol operator by operator, without a plan."""

from __future__ import annotations

from typing import Any, ClassVar

from flowmx.errors import ShapeError
from flowmx.executor.executor import Executor
from flowmx.graph.plan import Plan
from flowmx.ndarray.array import NDArray


class UnplannedExecutor(Executor):
    """An executor in which each operator is a separate operation.

    Attributes:
        reason: the property of the symbol that rules out a plan, for messages.
    """

    reason: ClassVar[str]

    def forward_backward(self, out_grads: object = None, **kwargs: object) -> list[NDArray]:
        outputs = self.forward(True, **kwargs)
        self.backward(out_grads)
        return outputs

    def _head_gradients(self, out_grads: Any) -> list[NDArray | None]:
        """Return the gradients of the outputs, None if absent.

        Raises:
            ShapeError: the shape of a gradient differs from that of its output.
        """
        heads: list[NDArray | None] = [out_grads] if isinstance(out_grads, NDArray) else list(out_grads or [])
        heads = [*heads, *[None] * len(self.outputs)][: len(self.outputs)]
        for position, (head, output) in enumerate(zip(heads, self.outputs, strict=True)):
            if head is not None and head.shape != output.shape:
                raise ShapeError(f"backward: out_grad {position} has shape {head.shape}, expected {output.shape}")
        return heads

    def internal_bytes(self) -> int:
        return 0  # nothing is planned

    @property
    def plan(self) -> Plan:
        raise ShapeError(f"this executor has no plan: {self.reason}")
