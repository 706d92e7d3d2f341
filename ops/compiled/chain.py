"""A chain: several elementwise operators fused into one, which a kernel computes in one pass over memory.

The pass in ``graph/passes/chains.py`` makes chains after differentiation, so a chain has no gradient. Any graph of
elementwise operators can become a chain, including graphs with several outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, cast

from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, operator
from flowmx.ops.registry.traits import BatchWise, Traits


class Link(NamedTuple):
    """One operator of a chain."""

    op: Operator
    inputs: tuple[int, ...]
    """Indices of the operands. Values are numbered: first the inputs of the chain, then the results of the links."""
    name: str
    """The name of its node, for error messages."""


_CACHE_SIZE = 1024
"""Maximum number of cached chain forms."""


class _SharedState(NamedTuple):
    """The state shared by chains that differ only in the names of their links, as in an unrolled cell."""

    last_reads: tuple[tuple[int, ...], ...]
    traits: Traits
    specs: dict[object, Any]
    prepared: dict[object, Any]


@lru_cache(_CACHE_SIZE)
def _shared_state(
    count: int, calls: tuple[tuple[Operator, tuple[int, ...]], ...], results: tuple[int, ...]
) -> _SharedState:
    """Return the shared state of chains of ``calls`` (operators with their operands) with ``count`` inputs."""
    last = {value: index for index, (_, inputs) in enumerate(calls) for value in inputs}
    last_reads: list[list[int]] = [[] for _ in calls]
    for value, index in last.items():
        if value >= count and value not in results:
            last_reads[index].append(value)
    # A loop reads an element of every input before it writes that element of any output.
    in_place = tuple([(source, target) for target in range(len(results)) for source in range(count)])
    return _SharedState(tuple(map(tuple, last_reads)), replace(Chain.traits, in_place=in_place), {}, {})


@operator("_chain")
class Chain(Operator, hidden=True, keeps_layout=True, batch_wise=BatchWise.ALL):
    """Elementwise operators in sequence, each with one output; all outputs have one shape and dtype."""

    arguments = ()
    count: ClassVar[int] = 0
    """The number of inputs."""
    links: ClassVar[tuple[Link, ...]] = ()
    """The operators in execution order."""
    results: ClassVar[tuple[int, ...]] = ()
    """Indices of the values that are outputs."""
    last_reads: ClassVar[tuple[tuple[int, ...], ...]] = ()
    """For each link, the intermediate values that no later link reads."""
    prepared: ClassVar[dict[object, Any]] = {}
    """Data that kernels prepare for a chain, by layout; shared by chains that differ only in names."""

    @classmethod
    def of(cls, count: int, links: Sequence[Link], results: Sequence[int]) -> Operator:
        """Create a chain.

        Args:
            count: the number of inputs.
            links: the operators, each after its operands.
            results: indices of the values that are outputs.
        """
        chain, results = cls(), tuple(results)
        shared = _shared_state(count, tuple([(link.op, link.inputs) for link in links]), results)
        chain.__dict__.update(
            count=count, links=tuple(links), results=results, last_reads=shared.last_reads, traits=shared.traits,
            _specs=shared.specs, prepared=shared.prepared,
        )  # fmt: skip
        return chain

    def inputs(self) -> tuple[str, ...]:
        return tuple([f"arg{index}" for index in range(self.count)])

    def outputs(self) -> tuple[str, ...]:
        return tuple([f"output{index}" for index in range(len(self.results))])

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        value_shapes = list(shapes)
        for link in self.links:
            value_shapes += link.op.infer_shape([value_shapes[value] for value in link.inputs])[1]
        return shapes, [value_shapes[value] for value in self.results]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        dtypes, _ = super().infer_type(dtypes)
        return dtypes, [dtypes[0]] * len(self.results)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        # The outputs may share memory with inputs that later links read.
        like = outputs[0]
        values: list[Array | None] = list(inputs)
        for link, last_reads in zip(self.links, self.last_reads, strict=True):
            result = run.xp.empty_like(like)
            link.op.forward(run, cast("list[Array]", [values[value] for value in link.inputs]), [result])
            values.append(result)
            for value in last_reads:
                values[value] = None
        for value, out in zip(self.results, outputs, strict=True):
            run.xp.copyto(out, values[value])

    def __repr__(self) -> str:
        return f"{self.name}({' -> '.join([f'{link.op!r} as {link.name!r}' for link in self.links])})"
