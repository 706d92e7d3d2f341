"""A region of a graph as one operator: what a partitioner puts in the place of the nodes that it chose.

Its form in files is that of MXNet's ``_CachedOp``: inputs in the order in which the inner graph lists its variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from flowmx.ops.control.control_flow import Flow, Inferred, InferredTypes
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Run, ShapeOrNone, operator

__all__ = ["Region"]


def auxiliary_inside(nodes: Iterable[Any]) -> set[Any]:
    """The variables that are auxiliary states of some node of an inner graph."""
    found: set[Any] = set()
    for node in nodes:
        if node.op is not None:
            found.update(node.inputs[position].node for position in node.op.auxiliary_positions())
    return found


@operator("_CachedOp")
class Region(Flow):
    """Run an inner graph."""

    count = 1

    @cached_property
    def num_outputs(self) -> int:  # type: ignore[override]  # which cached_property does allow
        """The number of outputs of the inner graph."""
        return len(self.subgraphs[0].entries)

    def inputs(self) -> tuple[str, ...]:
        return tuple(f"arg{index}" for index in range(len(self.subgraphs[0].variables)))

    def auxiliary_positions(self) -> tuple[int, ...]:
        body = self.subgraphs[0]
        states = auxiliary_inside(body.nodes)
        return tuple(at for at, node in enumerate(body.variables) if node in states)

    def locations(self) -> list[tuple[int, ...]]:
        return [tuple(range(len(self.subgraphs[0].variables)))]

    def kept(self) -> tuple[str, ...]:
        return ()

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        completed = list(shapes)
        return completed, [*self.infer_bodies(completed, [0])[0], *self.seed_shape()]

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        found: list[ShapeOrNone] = self.subgraphs[0].infer_shape(shapes, outputs[: self.num_outputs])[0]
        return found

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        completed = list(dtypes)
        return completed, [*self.infer_body_types(completed, [0])[0], *self.seed_type()]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        seed = self.seeded(run, outputs)
        fed = list(inputs)
        program = self.subgraphs[0].program(run, fed)
        program.run(self.iteration(run, seed, 0, 0), fed, outputs[: self.num_outputs])

    def backward(
        self, run: Run, heads: Sequence[Array], inputs: Sequence[Array], hidden: Sequence[Array],
        gradients: Sequence[Array | None],
    ) -> None:  # fmt: skip
        seed = int(hidden[-1][0]) if self.traits.uses_random else 0
        wanted = self.differentiable(0, gradients)
        if not wanted:
            return
        fed = self.scratched(0, inputs, run.xp)
        program = self.subgraphs[0].program(run, fed, dict.fromkeys(wanted, "add"))
        program.run(self.iteration(run, seed, 0, 0), [*fed, *heads], [gradients[position] for position in wanted])
