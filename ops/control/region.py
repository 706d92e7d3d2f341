"""A region of a graph as one operator. A partitioner replaces the nodes that it selects with a region.

In files it is MXNet's ``_CachedOp``: the inputs are in the order of the inner graph's variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.control.control_flow import Flow
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Run, ShapeOrNone, operator

__all__ = ["Region"]


def auxiliary_variables(nodes: Iterable[Any]) -> set[Any]:
    """Return the variables that are auxiliary states of a node of an inner graph."""
    variables: set[object] = set()
    for node in nodes:
        if node.op is not None:
            variables.update(node.inputs[position].node for position in node.op.auxiliary_positions())
    return variables


@operator("_CachedOp")
class Region(Flow):
    """Run an inner graph."""

    count = 1

    @cached_property
    def num_outputs(self) -> int:  # type: ignore[override]  # a cached_property can be assigned
        """The number of outputs of the inner graph."""
        return len(self.subgraphs[0].entries)

    def inputs(self) -> tuple[str, ...]:
        return tuple(f"arg{index}" for index in range(len(self.subgraphs[0].variables)))

    def auxiliary_positions(self) -> tuple[int, ...]:
        body = self.subgraphs[0]
        states = auxiliary_variables(body.nodes)
        return tuple(index for index, node in enumerate(body.variables) if node in states)

    def locations(self) -> list[tuple[int, ...]]:
        return [tuple(range(len(self.subgraphs[0].variables)))]

    def hidden_names(self) -> tuple[str, ...]:
        return ()

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        completed = list(shapes)
        return completed, [*self.infer_bodies(completed, [0])[0], *self.seed_shape()]

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        completed: list[ShapeOrNone] = self.subgraphs[0].infer_shape(shapes, outputs[: self.num_outputs])[0]
        return completed

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        completed = list(dtypes)
        return completed, [*self.infer_body_types(completed, [0])[0], *self.seed_type()]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        seed = self.draw_seed(run, outputs)
        values = list(inputs)
        program = self.subgraphs[0].program(run, values)
        program.run(self.iteration_run(run, seed, 0, 0), values, outputs[: self.num_outputs])

    def backward(
        self, run: Run, heads: Sequence[Array], inputs: Sequence[Array], hidden: Sequence[Array],
        gradients: Sequence[Array | None],
    ) -> None:  # fmt: skip
        seed = int(hidden[-1][0]) if self.traits.uses_random else 0
        positions = self.differentiable_inputs(0, gradients)
        if not positions:
            return
        values = self.copy_states(0, inputs, run.xp)
        program = self.subgraphs[0].program(run, values, dict.fromkeys(positions, "add"))
        program.run(
            self.iteration_run(run, seed, 0, 0), [*values, *heads], [gradients[position] for position in positions]
        )
