"""A row of the operator tables: the arguments of a call, and how to check the results."""

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
    """True if the gradient is that of the outputs (for output layers it is not)."""
    wrt: tuple[int, ...] | None = None
    """The inputs to differentiate by; None means all but the auxiliary states."""
    recorded: bool = True
    """True if MXNet's result is recorded."""
    outputs: int | None = None
    """The number of outputs to compare with MXNet's; None means all visible ones."""
    second: bool = False
    """True to check the second gradient too."""
    gradient: bool = True
    """False for operators without a gradient, such as an optimizer's."""
    same_gradient: bool = True
    """False if MXNet's gradient is wrong."""
    note: str = ""
    dtypes: Mapping[int, str] = MappingProxyType({})
    """Dtypes of inputs that must not be float32, by position."""
    out: tuple[int, ...] = ()
    """Inputs that the outputs overwrite; MXNet needs them as the argument ``out``."""

    @property
    def id(self) -> str:
        shown = "-".join(f"{key}={value}" for key, value in self.params.items())
        return "-".join(filter(None, (self.op, shown, self.note, "" if self.train else "predict")))

    @property
    def key(self) -> str:
        """The id and the shapes of the inputs: the key of a recording."""
        return " ".join([self.id, *(str(array.shape).replace(" ", "") for array in self.arrays())])

    def arrays(self, seed: int = 0) -> list[Array]:
        """Return the inputs in float64."""
        rng = np.random.default_rng(seed)
        return [
            np.asarray(item(rng) if callable(item) else rng.standard_normal(item), np.float64) for item in self.inputs
        ]

    def call_inputs(self) -> list[Array]:
        """Return the inputs in float32, or in the dtype of :attr:`dtypes`."""
        return [array.astype(self.dtypes.get(position, "float32")) for position, array in enumerate(self.arrays())]

    def written(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """Return the argument ``out``, or None."""
        return {"out": [arrays[position] for position in self.out]} if self.out else {}

    def differentiable(self) -> tuple[int, ...]:
        """Return the positions of the inputs whose gradients are compared."""
        if not self.gradient:
            return ()
        return tuple(range(len(self.inputs) - self.auxiliary)) if self.wrt is None else self.wrt


def by_key(cases: Iterable[Case]) -> dict[str, Case]:
    """Return the rows of a table by key.

    Raises:
        ValueError: two rows have the same key.
    """
    actual: dict[str, Case] = {}
    for case in cases:
        if actual.setdefault(case.key, case) is not case:
            raise ValueError(f"two rows of the table are {case.key!r}: give one of them a note")
    return actual


def positive(*shape: int) -> Maker:
    """Return numbers from 0.5 to 1.5."""
    return lambda rng: rng.uniform(0.5, 1.5, shape)


def apart(*shape: int) -> Maker:
    """Return numbers at least 0.1 apart from each other and from 0, in random order."""
    size = int(np.prod(shape))
    return lambda rng: ((rng.permutation(size) - size // 2 + 0.5) * 0.2).reshape(shape)


def ties(*shape: int) -> Maker:
    """Return integers of few different values, so that many are equal."""
    return lambda rng: rng.integers(0, 3, shape)


def classes(count: int, *shape: int) -> Maker:
    """Return class numbers."""
    return lambda rng: rng.integers(0, count, shape)


def fixed(values: Any) -> Maker:
    """Return fixed values."""
    return lambda rng: np.array(values)
