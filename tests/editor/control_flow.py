"""Loops and branches of arrays."""

from flowmx import nd
from flowmx.ndarray import NDArray


def step(item: NDArray, state: NDArray) -> tuple[NDArray, NDArray]:
    total = item + state
    return total, total


def goes_on(i: NDArray, total: NDArray) -> NDArray:
    return i < 4


def add(i: NDArray, total: NDArray) -> tuple[list[NDArray], list[NDArray]]:
    return [], [i + 1, total + i]


sums, last = nd.contrib.foreach(step, nd.array([1, 2, 3]), nd.zeros((1,)))
assert last.asscalar() == 6
_, ended = nd.contrib.while_loop(goes_on, add, [nd.array([0]), nd.array([0])], max_iterations=9)
assert ended[1].asscalar() == 6
chosen = nd.contrib.cond(nd.array([1]), lambda: nd.ones((1,)), lambda: nd.zeros((1,)))
assert chosen.asscalar() == 1
