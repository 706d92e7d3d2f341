"""The base of executors that run a symbol operator by operator, for which there is no plan."""

from __future__ import annotations

from typing import Any, ClassVar

from flowmx.errors import ShapeError
from flowmx.executor.executor import Executor
from flowmx.graph.plan import Plan
from flowmx.ndarray.array import NDArray


class UnplannedExecutor(Executor):
    """An executor of which each operator is an operation of its own.

    Attributes:
        reason: the property of the symbol that rules out a plan, for messages.
    """

    reason: ClassVar[str]

    def forward_backward(self, out_grads: Any = None, **kwargs: Any) -> list[NDArray]:
        made = self.forward(True, **kwargs)
        self.backward(out_grads)
        return made

    def _given(self, out_grads: Any) -> list[NDArray | None]:
        """The gradients of the outputs; None where there is none.

        Raises:
            ShapeError: one has another shape than its output.
        """
        given: list[NDArray | None] = [out_grads] if isinstance(out_grads, NDArray) else list(out_grads or [])
        given = [*given, *[None] * len(self.outputs)][: len(self.outputs)]
        for position, (head, output) in enumerate(zip(given, self.outputs, strict=True)):
            if head is not None and head.shape != output.shape:
                raise ShapeError(f"backward: out_grad {position} has shape {head.shape}, expected {output.shape}")
        return given

    def internal_bytes(self) -> int:
        return 0  # nothing is planned

    @property
    def plan(self) -> Plan:
        raise ShapeError(f"this executor has no plan: {self.reason}")
