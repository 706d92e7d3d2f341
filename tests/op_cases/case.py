"""A row of the operator tables: what to call an operator with, and how to check it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

Array = Any
Maker = Callable[[np.random.Generator], Array]


class Case(NamedTuple):
    """One call of an operator.

    An input is a shape (normal numbers), or a function of a generator. Auxiliary states are the last inputs.
    """

    op: str
    inputs: Sequence[tuple[int, ...] | Maker]
    params: Mapping[str, Any] = MappingProxyType({})
    auxiliary: int = 0
    train: bool = True
    numeric: bool = True
    """True where the gradient is that of the outputs (an output layer's is not)."""
    wrt: tuple[int, ...] | None = None
    """The inputs to differentiate by; None means all but the auxiliary states."""
    recorded: bool = True
    """True where MXNet's result is recorded."""
    outputs: int | None = None
    """The number of outputs to compare with MXNet's; None means all visible ones."""
    second: bool = False
    """True where the second gradient is checked too."""
    gradient: bool = True
    """False for operators through which no gradient flows, such as an optimizer's."""
    same_gradient: bool = True
    """False where MXNet's own gradient is wrong."""
    note: str = ""
    dtypes: Mapping[int, str] = MappingProxyType({})
    """Dtypes of inputs, by position, where float32 will not do."""
    out: tuple[int, ...] = ()
    """Inputs that the outputs are written over, which MXNet needs as an argument."""

    @property
    def id(self) -> str:
        shown = "-".join(f"{key}={value}" for key, value in self.params.items())
        return "-".join(filter(None, (self.op, shown, self.note, "" if self.train else "predict")))

    @property
    def key(self) -> str:
        """The id and the shapes of the inputs: recordings are found by it."""
        return " ".join([self.id, *(str(array.shape).replace(" ", "") for array in self.arrays())])

    def arrays(self, seed: int = 0) -> list[Array]:
        """The inputs, in float64."""
        rng = np.random.default_rng(seed)
        return [
            np.asarray(each(rng) if callable(each) else rng.standard_normal(each), np.float64) for each in self.inputs
        ]

    def given(self) -> list[Array]:
        """The inputs, in float32 or in their own dtype."""
        return [array.astype(self.dtypes.get(position, "float32")) for position, array in enumerate(self.arrays())]

    def written(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """The argument ``out``, where there is one."""
        return {"out": [arrays[position] for position in self.out]} if self.out else {}

    def differentiable(self) -> tuple[int, ...]:
        """Positions of the inputs whose gradients are compared."""
        if not self.gradient:
            return ()
        return tuple(range(len(self.inputs) - self.auxiliary)) if self.wrt is None else self.wrt


def by_key(cases: Iterable[Case]) -> dict[str, Case]:
    """The rows of a table by their keys.

    Raises:
        ValueError: two rows have the same key.
    """
    found: dict[str, Case] = {}
    for case in cases:
        if found.setdefault(case.key, case) is not case:
            raise ValueError(f"two rows of the table are {case.key!r}: give one of them a note")
    return found


def positive(*shape: int) -> Maker:
    """Numbers from 0.5 to 1.5."""
    return lambda rng: rng.uniform(0.5, 1.5, shape)


def apart(*shape: int) -> Maker:
    """Numbers at least 0.1 apart from each other and from 0, in random order."""
    size = int(np.prod(shape))
    return lambda rng: ((rng.permutation(size) - size // 2 + 0.5) * 0.2).reshape(shape)


def ties(*shape: int) -> Maker:
    """Few different integers, so that many are equal."""
    return lambda rng: rng.integers(0, 3, shape)


def classes(count: int, *shape: int) -> Maker:
    """Class numbers."""
    return lambda rng: rng.integers(0, count, shape)


def fixed(values: Any) -> Maker:
    """These values."""
    return lambda rng: np.array(values)
