"""``mx.mon.Monitor``: statistics of weights, gradients and everything in between, now and then.

Example:
    >>> mon = mx.mon.Monitor(100, pattern=".*weight")
    >>> await module.fit(train, num_epoch=5, monitor=mon)

or around any training step:

    >>> mon.install(net)                # a block, or an executor
    >>> mon.tic()
    >>> step()
    >>> mon.toc_print()
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from flowmx import ndarray as nd
from flowmx.autograd import pause
from flowmx.executor import Executor
from flowmx.gluon.base import Block
from flowmx.ndarray import NDArray

__all__ = ["Monitor"]

Statistic = Callable[[NDArray], NDArray | Sequence[NDArray]]
Row = tuple[int, str, str]


class _Entry(NamedTuple):
    step: int
    name: str
    values: Sequence[NDArray]


def rms(x: NDArray) -> NDArray:
    """The root of the mean of the squares."""
    return nd.norm(x.astype("float32", copy=False)) / math.sqrt(max(1, x.size))


class Monitor:
    """Statistics of outputs, weights and gradients, every so many batches.

    The values are those of the same operators, computed one by one: in the batches that it looks at nothing is fused or
    shares memory. In the others nothing is different. Statistics are enqueued; only :meth:`toc` waits.

    Args:
        interval: the number of batches between two observations.
        stat_func: gives an array, or several, for an array (default: its 2-norm divided by the root of its size).
        pattern: a regular expression; only values count whose names begin with a match. ``".*weight"`` are the weights,
            ``".*backward.*"`` the gradients in executors, ``".*_grad"`` those of a block's parameters.
        sort: sort by name.
        monitor_all: look at the inputs of operators too.

    Attributes:
        activated: True between a :meth:`tic` that looks and its :meth:`toc`.
        step: the number of calls of :meth:`tic`.
    """

    def __init__(
        self, interval: int, stat_func: Statistic | None = None, pattern: str = ".*", sort: bool = False,
        monitor_all: bool = False,
    ) -> None:  # fmt: skip
        self.interval = interval
        self.stat_func = stat_func or rms
        try:
            self.re_prog = re.compile(pattern)
        except re.error as error:
            raise ValueError(f"Monitor: pattern is {pattern!r}, expected a regular expression: {error}") from None
        self.sort = sort
        self.monitor_all = monitor_all
        self.activated = False
        self.step = 0
        self.queue: list[_Entry] = []
        self.exes: list[Executor] = []
        self.blocks: list[Block] = []

    def install(self, exe: Executor | Block) -> None:
        """Look at an executor, or at a block with its children; there may be several.

        Raises:
            TypeError: it is neither.
        """
        if isinstance(exe, Executor):
            exe.set_monitor_callback(self.stat_helper, self.monitor_all, self._is_activated)
            self.exes.append(exe)
        elif isinstance(exe, Block):
            exe._add_op_hook(self._at_operator, self.monitor_all, self._is_activated)
            exe.apply(lambda block: block.register_forward_hook(self._at_block))
            self.blocks.append(exe)
        else:
            raise TypeError(f"Monitor.install: {exe!r} was given, expected an Executor or a Block")

    def _is_activated(self) -> bool:
        return self.activated

    def stat_helper(self, name: str, array: NDArray) -> None:
        """Enqueue the statistic of a value, if it is looked at."""
        if self.activated and self.re_prog.match(name):
            self.queue.append(_Entry(self.step, name, self._statistic(name, array)))

    def _statistic(self, name: str, array: NDArray) -> Sequence[NDArray]:
        with pause():
            found = self.stat_func(array.detach())
        values = [found] if isinstance(found, NDArray) else found
        if not isinstance(values, (list, tuple)) or not all(isinstance(each, NDArray) for each in values):
            raise TypeError(f"Monitor: stat_func gave {found!r} for {name}, expected an array or a list of arrays")
        return values

    def _at_operator(self, name: str, operator: str, array: NDArray) -> None:
        self.stat_helper(name, array)

    def _at_block(self, block: Block, inputs: Any, outputs: Any) -> None:
        if not self.activated:
            return
        arrays = list(_arrays(outputs))
        for index, array in enumerate(arrays):
            self.stat_helper(f"{block.name}_output{index if len(arrays) > 1 else ''}", array)

    # -- a batch ---------------------------------------------------------------------------------------

    def tic(self) -> None:
        """Begin a batch, before its forward pass."""
        if self.step % self.interval == 0:
            self.queue = []
            self.activated = True
        self.step += 1

    def toc(self) -> list[Row]:
        """End a batch; returns (step, name, statistics in words) of what was looked at.

        Blocks until these are computed. In a coroutine, await :meth:`toc_async`.
        """
        return [self._row(entry) for entry in self._collected()]

    async def toc_async(self) -> list[Row]:
        """As :meth:`toc`, awaiting the statistics."""
        found = self._collected()
        for entry in found:
            for value in entry.values:
                await value
        return [self._row(entry) for entry in found]

    def toc_print(self) -> None:
        """End a batch, and log its statistics."""
        _log(self.toc())

    async def toc_print_async(self) -> None:
        """As :meth:`toc_print`, awaiting the statistics."""
        _log(await self.toc_async())

    def _collected(self) -> list[_Entry]:
        if not self.activated:
            return []
        for name, array in self._kept():
            self.stat_helper(name, array)
        self.activated = False
        found, self.queue = self.queue, []
        return sorted(found, key=lambda entry: entry.name) if self.sort else found

    def _kept(self) -> Iterator[tuple[str, NDArray]]:
        """The arrays that stay from batch to batch."""
        for exe in self.exes:
            yield from exe.arg_dict.items()
            yield from exe.aux_dict.items()
        for block in self.blocks:
            for name, param in block.collect_params().items():
                if param._arrays:
                    yield name, param.list_data()[0]
                    if param.grad_req != "null":
                        yield f"{name}_grad", param.list_grad()[0]

    def _row(self, entry: _Entry) -> Row:
        words = [str(each.asscalar() if each.shape == (1,) else each.asnumpy()) + "\t" for each in entry.values]
        return entry.step, entry.name, "".join(words)


def _log(rows: Sequence[Row]) -> None:
    for step, name, words in rows:
        logging.info("Batch: %7d %30s %s", step, name, words)


def _arrays(value: Any) -> Iterator[NDArray]:
    if isinstance(value, NDArray):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _arrays(each)
