"""A region of a graph that runs slice by slice along the batch, as one operator.

The planner makes it (``graph/planning/region.py``), with a plan of the region for one slice. Its values are as large as
a slice needs and lie where the operator works; what it reads and gives lies whole, and each slice reads and writes its
part in place, or adds to a sum over the batch. Where nothing is summed, the last slice may begin before the one before
it ends: those rows are computed twice, with one result.

Where the device captures steps as graphs, which hold addresses, each slice is *staged*: it is copied to where the
slices before it lay, and what is computed there is copied to its place. What is between is captured once, and launched
for each slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, operator


@operator("_sliced")
class Sliced(Operator, hidden=True):
    """Operators that go along with the batch, one slice of it after the other."""

    arguments = ()
    plan: ClassVar[Any] = None
    """The plan of a slice (:class:`flowmx.graph.plan.Plan`), its variables and outputs in the order of these."""
    variables: ClassVar[tuple[Any, ...]] = ()
    """The entries of the plan's graph that stand for the inputs."""
    rows: ClassVar[tuple[int, ...]] = ()
    """For each input, then for each output, the rows of it that are a slice's; 0 where each slice takes the whole."""
    starts: ClassVar[tuple[tuple[int, ...], ...]] = ()
    """For each slice the first row of each input, then of each output."""
    forms: ClassVar[tuple[tuple[Shape, DType], ...]] = ()
    """Shape and dtype of each output."""
    batch: ClassVar[tuple[int, int]] = (1, 1)
    """Numbers of examples: of all, and of a slice."""
    laid: ClassVar[tuple[bool, ...]] = ()
    """For each output, whether it lies channels-last where it is not the user's."""
    staged: ClassVar[bool] = False
    """True where the plan begins and ends with copies (:class:`Staged`), between which nothing moves."""

    @classmethod
    def of(cls, **fields: Any) -> Sliced:
        """The operator with these fields."""
        made = cls()
        for name, value in {**fields, "_specs": {}}.items():
            object.__setattr__(made, name, value)
        draws = any(node.op.draws(made.plan.graph.train) for node in made.nodes())
        if draws or made.staged:
            made.with_traits(uses_random=draws, replays=made.staged)
        return made

    def nodes(self) -> list[Any]:
        """The operators that a slice runs, in order."""
        return [*self.plan.forward, *self.plan.backward]

    def inputs(self) -> tuple[str, ...]:
        return tuple([f"arg{index}" for index in range(len(self.variables))])

    def outputs(self) -> tuple[str, ...]:
        return tuple([f"output{index}" for index in range(len(self.forms))])

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        return shapes, [shape for shape, _ in self.forms]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        return dtypes, [dtype for _, dtype in self.forms]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        shapes = self.plan.graph.shapes
        costs = [
            node.op.cost([shapes[e] for e in node.inputs], [shapes[node, at] for at in range(node.outputs())])
            for node in self.nodes()
        ]
        return len(self.starts) * sum(flops for flops, _ in costs), len(self.starts) * sum(moved for _, moved in costs)

    def told(self) -> str:
        """The cut in words."""
        examples, length = self.batch
        return f"{len(self.starts)} slices of {length} of {examples}" + ", staged" * self.staged

    def launches(self) -> int:
        """The number of launches, where what is between copies is one."""
        copies = sum(isinstance(node.op, Staged) for node in self.nodes())
        return len(self.starts) * (1 + copies)

    def __repr__(self) -> str:
        return f"{self.name}({self.told()})"


@operator("_summed")
class Summed(Operator, hidden=True):
    """A sum over the slices of a batch: what it reads in the first one, to which that of the others is added."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0])


@operator("_staged")
class Staged(Operator, hidden=True):
    """A copy of a part of the batch to where a captured graph finds it, or from where it leaves it."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0])
