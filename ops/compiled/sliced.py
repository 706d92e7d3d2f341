"""A region of a graph that runs slice by slice along the batch, as one operator.

The planner creates it (``graph/planning/batch_region.py``) with a plan of the region for one slice. Intermediate values
have the size of a slice and share the operator's workspace. Inputs and outputs have the size of the batch: each slice
reads and writes its rows in place, or adds to a sum over the batch. Without sums, the last slice may overlap the one
before; the common rows are computed twice, with the same result.

If the device captures steps as graphs, which hold addresses, slices are *staged*: the inputs of a slice are copied to
a fixed address, and its results are copied from there. The steps between are captured once and launched for each slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, operator


@operator("_sliced")
class Sliced(Operator, hidden=True):
    """Run a plan for each slice of the batch in turn."""

    arguments = ()
    plan: ClassVar[Any] = None
    """The plan of a slice (:class:`flowmx.graph.plan.Plan`); its variables and outputs are in the operator's order."""
    variables: ClassVar[tuple[Any, ...]] = ()
    """The entries of the plan's graph that represent the inputs."""
    rows: ClassVar[tuple[int, ...]] = ()
    """For each input, then each output: the rows of a slice; 0 if every slice uses the whole array."""
    starts: ClassVar[tuple[tuple[int, ...], ...]] = ()
    """For each slice: the first row of each input, then of each output."""
    forms: ClassVar[tuple[tuple[Shape, DType], ...]] = ()
    """Shape and dtype of each output."""
    batch: ClassVar[tuple[int, int]] = (1, 1)
    """The numbers of samples in the batch and in a slice."""
    channels_last: ClassVar[tuple[bool, ...]] = ()
    """For each output: whether it is channels-last unless it is a user's array."""
    staged: ClassVar[bool] = False
    """Whether the plan begins and ends with copies (:class:`Staged`) to and from fixed addresses."""

    @classmethod
    def of(cls, **fields: object) -> Sliced:
        """Create an operator with these fields."""
        op = cls()
        for name, value in {**fields, "_specs": {}}.items():
            object.__setattr__(op, name, value)
        draws = any(node.op.draws(op.plan.graph.train) for node in op.nodes())
        if draws or op.staged:
            op.with_traits(uses_random=draws, replays=op.staged)
        return op

    def nodes(self) -> list[Any]:
        """Return the nodes that a slice runs, in order."""
        return [*self.plan.forward, *self.plan.backward]

    def inputs(self) -> tuple[str, ...]:
        return tuple([f"arg{index}" for index in range(len(self.variables))])

    def outputs(self) -> tuple[str, ...]:
        return tuple([f"output{index}" for index in range(len(self.forms))])

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shape for shape, _ in self.forms]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtype for _, dtype in self.forms]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        shapes = self.plan.graph.shapes
        costs = [
            node.op.cost([shapes[e] for e in node.inputs], [shapes[node, index] for index in range(node.outputs())])
            for node in self.nodes()
        ]
        return len(self.starts) * sum(flops for flops, _ in costs), len(self.starts) * sum(moved for _, moved in costs)

    def description(self) -> str:
        """Return a description of the slices for reports."""
        samples, length = self.batch
        return f"{len(self.starts)} slices of {length} of {samples}" + ", staged" * self.staged

    def launches(self) -> int:
        """Return the number of launches: the copies, and one launch of all steps between them, for each slice."""
        copies = sum(isinstance(node.op, Staged) for node in self.nodes())
        return len(self.starts) * (1 + copies)

    def __repr__(self) -> str:
        return f"{self.name}({self.description()})"


@operator("_summed")
class Summed(Operator, hidden=True):
    """A sum over the slices of a batch: a copy in the first slice; later slices are added."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0])


@operator("_staged")
class Staged(Operator, hidden=True):
    """A copy of a slice to or from the fixed addresses of a captured graph."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0])
