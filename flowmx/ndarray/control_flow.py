"""Loops and branches on arrays. The user's functions are called in each iteration, and recorded like any code.

Loop conditions and predicates are read from arrays, which blocks until they are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from flowmx.errors import ShapeError
from flowmx.graph.nesting import Format, flatten, regroup
from flowmx.ndarray import functions as F
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.creation import zeros

Data = TypeVar("Data")
States = TypeVar("States")
Outputs = TypeVar("Outputs")
"""Arrays, or nested lists and tuples of them."""


def foreach(
    body: Callable[[Data, States], tuple[Outputs, States]], data: Data, init_states: States
) -> tuple[Outputs, States]:
    """Loop over the slices of the data along the first axis.

    Args:
        body: called as ``body(slice, states)``; returns the outputs of the iteration and the new states.
        data: an array, or a (nested) list of them.
        init_states: the first states, an array or a (nested) list of them.

    Returns:
        the outputs of all iterations, stacked, and the last states.

    Raises:
        TypeError: ``data``, a state or an output contains something that is not an array.
        ValueError: ``data`` is empty.
    """
    arrays, form = flatten(data, NDArray, "foreach: data")
    flatten(init_states, NDArray, "foreach: init_states")
    if not arrays:
        raise ValueError("foreach: data is empty, expected at least one array")
    states, stacked = init_states, _OutputStack("foreach: the body's outputs")
    for index in range(len(arrays[0])):
        outputs, states = body(regroup([each[index] for each in arrays], form), states)
        stacked.add(outputs)
    return cast("Outputs", stacked.result()), states


def while_loop(
    cond: Callable[..., object], func: Callable[..., tuple[Outputs, States]], loop_vars: States,
    max_iterations: int | None = None,
) -> tuple[Outputs, States]:  # fmt: skip
    """Loop as long as a condition holds.

    Args:
        cond: called as ``cond(*loop_vars)``; returns an array of one element (or a number).
        func: called as ``func(*loop_vars)``; returns the outputs of the iteration and the new loop variables.
        loop_vars: the first loop variables, an array or a (nested) list of them.
        max_iterations: the maximum number of iterations.

    Returns:
        the outputs, stacked along a first axis of length ``max_iterations`` and padded with zeros (an empty list if
        there was no iteration), and the last loop variables.

    Raises:
        ValueError: ``max_iterations`` is missing, there are no loop variables, or the number of loop variables or
            outputs that the function returns changes.
    """
    if max_iterations is None:
        raise ValueError("while_loop: max_iterations must be given")
    single = isinstance(loop_vars, NDArray)
    variables: list[Any] = [loop_vars] if single else list(cast("Any", loop_vars))
    if not variables:
        raise ValueError("while_loop: loop_vars is empty, expected at least one")
    stacked = _OutputStack("while_loop: the function's outputs")
    while stacked.count < int(max_iterations) and bool(cond(*variables)):
        outputs, after = func(*variables)
        following = [after] if isinstance(after, NDArray) else list(cast("Any", after) or [])
        if len(following) != len(variables):
            raise ValueError(
                f"while_loop: the function returned {len(following)} loop variables, expected {len(variables)}"
            )
        variables = following
        stacked.add([] if outputs is None else outputs)
    last = variables[0] if single else variables
    return cast("Outputs", stacked.result(int(max_iterations))), cast("States", last)


def cond(pred: object, then_func: Callable[[], Outputs], else_func: Callable[[], Outputs]) -> Outputs:
    """Call ``then_func`` if ``pred`` (an array of one element, or a number) is not zero, else ``else_func``.

    Blocks until ``pred`` is computed.

    Returns:
        The result of the function that was called.

    Raises:
        ValueError: ``pred`` has more than one element.
    """
    return then_func() if bool(pred) else else_func()


class _OutputStack:
    """The outputs of the iterations."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._rows: list[list[Any]] = []
        self._form: Format = []

    @property
    def count(self) -> int:
        """The number of iterations so far."""
        return len(self._rows)

    def add(self, outputs: object) -> None:
        """Append the outputs of one iteration."""
        row, self._form = flatten(outputs, NDArray, self._what)
        if self._rows and len(row) != len(self._rows[0]):
            raise ValueError(
                f"{self._what} are {len(row)} arrays, expected {len(self._rows[0])} as in earlier iterations"
            )
        for position, (first, now) in enumerate(zip(self._rows[0] if self._rows else (), row, strict=False)):
            if first.shape != now.shape:
                raise ShapeError(
                    f"{self._what}: array {position} has shape {now.shape} in iteration {self.count}, expected "
                    f"{first.shape} as in earlier iterations"
                )
        self._rows.append(row)

    def result(self, length: int | None = None) -> Any:
        """Return the stacked arrays, padded with zeros to a length."""
        stacked = []
        for column in zip(*self._rows, strict=True):
            array = F.op("stack", *column, axis=0)
            if length is not None and length > self.count:
                rest = zeros((length - self.count, *column[0].shape), column[0].context, column[0].dtype)
                array = F.op("Concat", array, rest, dim=0)
            stacked.append(array)
        return regroup(stacked, self._form)
