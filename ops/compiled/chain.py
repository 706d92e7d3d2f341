"""A chain: several elementwise operators as one, which a kernel computes in one pass over memory.

The pass in ``graph/passes/chains.py`` makes chains after differentiation, so they have no gradients of their own. Any
graph of elementwise operators may be one, with several outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, operator
from flowmx.ops.registry.traits import BatchWise, Traits


class Link(NamedTuple):
    """One operator of a chain."""

    op: Operator
    inputs: tuple[int, ...]
    """Indices of the values that it reads; values are the chain's inputs, then the links' results, in order."""
    name: str
    """The name of its node, for messages."""


_KEPT = 1024
"""Forms of chains that are kept."""


class _Common(NamedTuple):
    """The part that chains share which differ in nothing but the names of their links, as those of an unrolled cell."""

    done: tuple[tuple[int, ...], ...]
    traits: Traits
    specs: dict[Any, Any]
    prepared: dict[Any, Any]


@lru_cache(_KEPT)
def _common(count: int, calls: tuple[tuple[Operator, tuple[int, ...]], ...], results: tuple[int, ...]) -> _Common:
    """The common part for so many inputs, operators with the values that they read, and results."""
    last = {value: at for at, (_, inputs) in enumerate(calls) for value in inputs}
    done: list[list[int]] = [[] for _ in calls]
    for value, at in last.items():
        if value >= count and value not in results:
            done[at].append(value)
    # A loop reads an element of every input before it writes that of any output.
    in_place = tuple([(source, target) for target in range(len(results)) for source in range(count)])
    return _Common(tuple(map(tuple, done)), replace(Chain.traits, in_place=in_place), {}, {})


@operator("_chain")
class Chain(Operator, hidden=True, keeps_layout=True, batch_wise=BatchWise.ALL):
    """Elementwise operators one after the other, each with one output; all outputs have one shape and dtype."""

    arguments = ()
    count: ClassVar[int] = 0
    """The number of inputs."""
    links: ClassVar[tuple[Link, ...]] = ()
    """The operators, in an order in which they can run."""
    results: ClassVar[tuple[int, ...]] = ()
    """Indices of the values that are outputs; values are the inputs, then the links' results."""
    done: ClassVar[tuple[tuple[int, ...], ...]] = ()
    """For each link, the values of links that nothing reads after it."""
    prepared: ClassVar[dict[Any, Any]] = {}
    """The place for what kernels prepare for a chain, by layout; chains that differ in names alone have it together."""

    @classmethod
    def of(cls, count: int, links: Sequence[Link], results: Sequence[int]) -> Operator:
        """The chain of these operators.

        Args:
            count: how many inputs it has.
            links: the operators, each after those whose values it reads.
            results: which values are outputs.
        """
        made, results = cls(), tuple(results)
        common = _common(count, tuple([(link.op, link.inputs) for link in links]), results)
        made.__dict__.update(
            count=count, links=tuple(links), results=results, done=common.done, traits=common.traits,
            _specs=common.specs, prepared=common.prepared,
        )  # fmt: skip
        return made

    def inputs(self) -> tuple[str, ...]:
        return tuple([f"arg{index}" for index in range(self.count)])

    def outputs(self) -> tuple[str, ...]:
        return tuple([f"output{index}" for index in range(len(self.results))])

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        known = list(shapes)
        for link in self.links:
            known += link.op.infer_shape([known[value] for value in link.inputs])[1]
        return shapes, [known[value] for value in self.results]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        dtypes, _ = super().infer_type(dtypes)
        return dtypes, [dtypes[0]] * len(self.results)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        # The outputs may lie where inputs do, which later links read.
        like = outputs[0]
        values: list[Array] = list(inputs)
        for link, done in zip(self.links, self.done, strict=True):
            made = run.xp.empty_like(like)
            link.op.forward(run, [values[value] for value in link.inputs], [made])
            values.append(made)
            for value in done:
                values[value] = None
        for value, out in zip(self.results, outputs, strict=True):
            run.xp.copyto(out, values[value])

    def __repr__(self) -> str:
        return f"{self.name}({' -> '.join([f'{link.op!r} as {link.name!r}' for link in self.links])})"
