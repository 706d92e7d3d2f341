"""The policy of mixed precision: the dtypes of each operator's inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx.amp import lists
from flowmx.bounded_tables import make_room
from flowmx.errors import TypeInferenceError
from flowmx.ops.registry.dtypes import FLOAT32, DType, as_dtype, is_floating, name_of
from flowmx.ops.registry.operators import Operator, lookup
from flowmx.ops.registry.traits import Precision

Conditions = Sequence[tuple[str, str, Sequence[Any]]]

_CACHE_SIZE = 4096
"""The number of cached combinations of operator and dtypes."""


class Condition(NamedTuple):
    """An operator stays in float32 if a parameter has one of these values."""

    parameter: str
    values: frozenset[str]


def parse_low_dtype(target_dtype: Any) -> DType:
    """Return a 16-bit dtype by name.

    Raises:
        ValueError: it is not a 16-bit floating-point dtype.
    """
    try:
        dtype = as_dtype(target_dtype)
    except TypeInferenceError:
        dtype = None
    if dtype is None or dtype == FLOAT32 or dtype.itemsize != 2 or not is_floating(dtype):
        raise ValueError(f"amp: target_dtype is {target_dtype!r}, expected 'float16' or 'bfloat16'")
    return dtype


class Policy:
    """The casting rules of mixed precision: the dtype of each operator's inputs.

    Args:
        target_dtype: the 16-bit type.
        lp16: operators to compute in it (default: those of the lists).
        fp32: operators to compute in float32.
        conditional_fp32: (operator, parameter, values): the operator computes in float32 for these values.
        excluded: names of nodes to compute in float32.

    Raises:
        ValueError: the dtype is unsupported, or an operator is on two lists.
        AttributeError: an operator is unknown.

    Attributes:
        dtype: the 16-bit type.
    """

    def __init__(
        self, target_dtype: Any, lp16: Sequence[str] | None = None, fp32: Sequence[str] | None = None,
        conditional_fp32: Conditions | None = None, excluded: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self.dtype = parse_low_dtype(target_dtype)
        rows = lists.conditional_fp32() if conditional_fp32 is None else conditional_fp32
        self._conditions = {lookup(op).name: Condition(name, frozenset(map(str, values))) for op, name, values in rows}
        explicit = {"lp16": lp16, "fp32": fp32}
        names = {kind: {lookup(op).name for op in ops} for kind, ops in explicit.items() if ops is not None}
        names["conditional_fp32"] = set(self._conditions) if conditional_fp32 is not None else set()
        _check_disjoint(names)
        listed = set().union(*names.values())
        names.setdefault("lp16", set(lists.computing_in(Precision.LOW)) - listed)
        names.setdefault("fp32", set(lists.computing_in(Precision.FLOAT32)) - listed)
        unconditional = names["lp16"] | names["fp32"]
        self._conditions = {op: condition for op, condition in self._conditions.items() if op not in unconditional}
        self._rules = {
            **dict.fromkeys(lists.computing_in(Precision.WIDEST), self._widest),
            **dict.fromkeys(names["lp16"], self._narrow),
            **dict.fromkeys(names["fp32"], self._wide),
        }
        self._excluded = frozenset(excluded)
        self._targets: dict[Any, tuple[DType, ...] | None] = {}

    @property
    def needs_scaling(self) -> bool:
        """Whether losses must be scaled: true for float16, in whose small range gradients underflow."""
        return self.dtype == np.float16

    def __repr__(self) -> str:
        return f"<mixed precision {name_of(self.dtype)}>"

    def targets(self, op: Operator, dtypes: tuple[DType, ...], name: str = "") -> tuple[DType, ...] | None:
        """Return the dtypes to cast the inputs of an operator to, or None if no cast is needed."""
        key = (op, dtypes, name in self._excluded)
        try:
            return self._targets[key]
        except KeyError:
            pass
        make_room(self._targets, _CACHE_SIZE)
        targets = self._targets[key] = self._decide(op, dtypes, name in self._excluded)
        return targets

    def leaves(self, op: Operator, name: str = "") -> bool:
        """Return whether the operator is on no list, so that it computes in the dtypes of its inputs."""
        return op.name not in self._rules and name not in self._excluded and not self._is_conditional(op)

    def _decide(self, op: Operator, dtypes: tuple[DType, ...], is_excluded: bool) -> tuple[DType, ...] | None:
        if op.updates or op.traits.hidden or not dtypes or any(dtype == np.float64 for dtype in dtypes):
            return None
        rule = self._wide if is_excluded or self._is_conditional(op) else self._rules.get(op.name, self._any)
        names = op.inputs()
        at = [
            i for i, dtype in enumerate(dtypes) if i < len(names) and is_floating(dtype) and names[i] not in lists.KEEP
        ]
        target = rule(op, dtypes, at)
        if target is None or all(dtypes[i] == target for i in at):
            return None
        return tuple([target if i in at else dtype for i, dtype in enumerate(dtypes)])

    def _is_conditional(self, op: Operator) -> bool:
        condition = self._conditions.get(op.name)
        return condition is not None and str(getattr(op, condition.parameter, None)) in condition.values

    def _narrow(self, op: Operator, dtypes: Sequence[DType], at: Sequence[int]) -> DType | None:
        return self.dtype

    def _wide(self, op: Operator, dtypes: Sequence[DType], at: Sequence[int]) -> DType | None:
        return FLOAT32

    def _widest(self, op: Operator, dtypes: Sequence[DType], at: Sequence[int]) -> DType | None:
        return FLOAT32 if len({dtypes[i] for i in at}) > 1 else None

    def _any(self, op: Operator, dtypes: Sequence[DType], at: Sequence[int]) -> DType | None:
        """Keep the dtypes of the inputs; use the widest if the operator does not accept them."""
        if self._widest(op, dtypes, at) is None:
            return None
        try:
            op.infer_type(list(dtypes))
        except TypeInferenceError:
            return FLOAT32
        return None


def _check_disjoint(names: dict[str, set[str]]) -> None:
    kinds = list(names)
    for position, one in enumerate(kinds):
        for other in kinds[position + 1 :]:
            both = names[one] & names[other]
            if both:
                raise ValueError(f"amp: {', '.join(sorted(both))} is on two lists, {one} and {other}: expected one")
