"""A policy: what each operator is given in mixed precision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx.amp import lists
from flowmx.errors import TypeInferenceError
from flowmx.ops.registry.dtypes import FLOAT32, DType, as_dtype, is_floating, name_of
from flowmx.ops.registry.operators import Operator, lookup
from flowmx.ops.registry.traits import Precision

Conditions = Sequence[tuple[str, str, Sequence[Any]]]

_MIXED = 4096
"""Combinations of operator and dtypes to remember."""


class Condition(NamedTuple):
    """Operators stay float32 where a parameter has one of these values."""

    parameter: str
    values: frozenset[str]


def checked_dtype(target_dtype: Any) -> DType:
    """The 16-bit type that is meant.

    Raises:
        ValueError: it is another type.
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
        conditional_fp32: (operator, parameter, values): those that are in float32 where the parameter has such a value.
        excluded: names of nodes to compute in float32.

    Raises:
        ValueError: another type, or an operator that is on two lists.
        AttributeError: there is no such operator.

    Attributes:
        dtype: the 16-bit type.
    """

    def __init__(
        self, target_dtype: Any, lp16: Sequence[str] | None = None, fp32: Sequence[str] | None = None,
        conditional_fp32: Conditions | None = None, excluded: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self.dtype = checked_dtype(target_dtype)
        given = lists.conditional_fp32() if conditional_fp32 is None else conditional_fp32
        self._conditions = {lookup(op).name: Condition(name, frozenset(map(str, values))) for op, name, values in given}
        chosen = {"lp16": lp16, "fp32": fp32}
        named = {kind: {lookup(op).name for op in ops} for kind, ops in chosen.items() if ops is not None}
        named["conditional_fp32"] = set(self._conditions) if conditional_fp32 is not None else set()
        _refuse_double(named)
        taken = set().union(*named.values())
        named.setdefault("lp16", set(lists.computing_in(Precision.LOW)) - taken)
        named.setdefault("fp32", set(lists.computing_in(Precision.FLOAT32)) - taken)
        chosen_ops = named["lp16"] | named["fp32"]
        self._conditions = {op: each for op, each in self._conditions.items() if op not in chosen_ops}
        self._rules = {
            **dict.fromkeys(lists.computing_in(Precision.WIDEST), self._widest),
            **dict.fromkeys(named["lp16"], self._narrow),
            **dict.fromkeys(named["fp32"], self._wide),
        }
        self._excluded = frozenset(excluded)
        self._known: dict[Any, tuple[DType, ...] | None] = {}

    @property
    def needs_scaling(self) -> bool:
        """True for float16, whose small range lets gradients vanish unless losses are scaled."""
        return self.dtype == np.float16

    def __repr__(self) -> str:
        return f"<mixed precision {name_of(self.dtype)}>"

    def targets(self, op: Operator, dtypes: tuple[DType, ...], name: str = "") -> tuple[DType, ...] | None:
        """The dtypes that the inputs of an operator are to have; None where all stay as they are."""
        key = (op, dtypes, name in self._excluded)
        try:
            return self._known[key]
        except KeyError:
            pass
        if len(self._known) >= _MIXED:
            self._known.clear()
        found = self._known[key] = self._decide(op, dtypes, name in self._excluded)
        return found

    def leaves(self, op: Operator, name: str = "") -> bool:
        """Tell whether the operator is on no list, so that it computes in the types that it is given."""
        return op.name not in self._rules and name not in self._excluded and not self._is_conditional(op)

    def _decide(self, op: Operator, dtypes: tuple[DType, ...], is_excluded: bool) -> tuple[DType, ...] | None:
        if op.updates or op.traits.hidden or not dtypes or any(dtype == np.float64 for dtype in dtypes):
            return None
        rule = self._wide if is_excluded or self._is_conditional(op) else self._rules.get(op.name, self._any)
        names = op.inputs()
        at = [
            i for i, dtype in enumerate(dtypes) if i < len(names) and is_floating(dtype) and names[i] not in lists.KEEP
        ]
        wanted = rule(op, dtypes, at)
        if wanted is None or all(dtypes[i] == wanted for i in at):
            return None
        return tuple([wanted if i in at else dtype for i, dtype in enumerate(dtypes)])

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
        """Whatever it is given; the widest, where it does not take them as they are."""
        if self._widest(op, dtypes, at) is None:
            return None
        try:
            op.infer_type(list(dtypes))
        except TypeInferenceError:
            return FLOAT32
        return None


def _refuse_double(named: dict[str, set[str]]) -> None:
    kinds = list(named)
    for position, one in enumerate(kinds):
        for other in kinds[position + 1 :]:
            both = named[one] & named[other]
            if both:
                raise ValueError(f"amp: {', '.join(sorted(both))} is on two lists, {one} and {other}: expected one")
