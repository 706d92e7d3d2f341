"""``mx.mon.Monitor``: periodic statistics of weights, gradients and all intermediate values.

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

import asyncio
import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from flowmx import ndarray as nd
from flowmx.autograd import pause
from flowmx.executor import Executor
from flowmx.gluon.base_block import Block
from flowmx.keywords import ChecksKeywords
from flowmx.ndarray import NDArray
from flowmx.overrides import is_replaced

__all__ = ["Monitor"]

Statistic = Callable[[NDArray], NDArray | Sequence[NDArray]]
Row = tuple[int, str, str]


class _Entry(NamedTuple):
    step: int
    name: str
    values: Sequence[NDArray]


def rms(x: NDArray) -> NDArray:
    """Return the root of the mean of the squares."""
    return nd.norm(x.astype("float32", copy=False)) / math.sqrt(max(1, x.size))


class Monitor(ChecksKeywords):
    """Statistics of outputs, weights and gradients, every ``interval`` batches.

    Observed batches are computed operator by operator, without fusion or memory sharing; other batches are not
    affected. Statistics are enqueued; only :meth:`toc` waits.

    Args:
        interval: the number of batches between two observations.
        stat_func: returns an array, or several, for an array (default: its 2-norm divided by the root of its size).
        pattern: a regular expression, matched at the beginning of names. ``".*weight"`` selects the weights,
            ``".*backward.*"`` the gradients in executors, ``".*_grad"`` the gradients of a block's parameters.
        sort: sort by name.
        monitor_all: observe the inputs of operators too.

    Attributes:
        activated: True from a :meth:`tic` of an observed batch to its :meth:`toc`.
        step: the number of calls of :meth:`tic`.
    """

    def __init__(
        self, interval: int, stat_func: Statistic | None = None, pattern: str = ".*", sort: bool = False,
        monitor_all: bool = False,
    ) -> None:  # fmt: skip
        if not isinstance(interval, (int, float)):
            raise TypeError(f"Monitor: interval is {interval!r}, expected the number of batches between observations")
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
        """Observe an executor, or a block with its children; may be called several times.

        Raises:
            TypeError: the argument has a different type.
        """
        if isinstance(exe, Executor):
            exe.set_monitor_callback(self.stat_helper, self.monitor_all, self._is_activated)
            self.exes.append(exe)
        elif isinstance(exe, Block):
            exe._add_op_hook(self._observe_operator, self.monitor_all, self._is_activated)
            exe.apply(lambda block: block.register_forward_hook(self._observe_block))
            self.blocks.append(exe)
        else:
            raise TypeError(f"Monitor.install: exe is {exe!r}, expected an Executor or a Block")

    def _is_activated(self) -> bool:
        return self.activated

    def stat_helper(self, name: str, array: NDArray) -> None:
        """Enqueue the statistic of a value, if the batch is observed and the name matches."""
        if self.activated and self.re_prog.match(name):
            self.queue.append(_Entry(self.step, name, self._statistic(name, array)))

    def _statistic(self, name: str, array: NDArray) -> Sequence[NDArray]:
        with pause():
            result = self.stat_func(array.detach())
        values = [result] if isinstance(result, NDArray) else result
        if not isinstance(values, (list, tuple)) or not all(isinstance(value, NDArray) for value in values):
            raise TypeError(f"Monitor: stat_func returned {result!r} for {name}, expected an array or a list of arrays")
        return values

    def _observe_operator(self, name: str, operator: str, array: NDArray) -> None:
        self.stat_helper(name, array)

    def _observe_block(self, block: Block, inputs: object, outputs: object) -> None:
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
        """End a batch; return (step, name, statistics as text) of the observed values.

        Blocks until these are computed. In a coroutine, await :meth:`toc_async`.
        """
        return [self._row(entry) for entry in self._collect()]

    async def toc_async(self) -> list[Row]:
        """Run :meth:`toc`, awaiting the statistics."""
        if is_replaced(self, "toc", _toc):
            return await asyncio.to_thread(self.toc)
        entries = self._collect()
        for entry in entries:
            for value in entry.values:
                await value
        return [self._row(entry) for entry in entries]

    def toc_print(self) -> None:
        """End a batch, and log its statistics."""
        _log(self.toc())

    async def toc_print_async(self) -> None:
        """Run :meth:`toc_print`, awaiting the statistics."""
        if is_replaced(self, "toc_print", _toc_print):
            await asyncio.to_thread(self.toc_print)
        else:
            _log(await self.toc_async())

    def _collect(self) -> list[_Entry]:
        if not self.activated:
            return []
        for name, array in self._persistent_arrays():
            self.stat_helper(name, array)
        self.activated = False
        entries, self.queue = self.queue, []
        return sorted(entries, key=lambda entry: entry.name) if self.sort else entries

    def _persistent_arrays(self) -> Iterator[tuple[str, NDArray]]:
        """Iterate over the weights, auxiliary states and gradients, by name."""
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
        words = [str(value.asscalar() if value.shape == (1,) else value.asnumpy()) + "\t" for value in entry.values]
        return entry.step, entry.name, "".join(words)


_toc, _toc_print = Monitor.toc, Monitor.toc_print


def _log(rows: Sequence[Row]) -> None:
    for step, name, words in rows:
        logging.info("Batch: %7d %30s %s", step, name, words)


def _arrays(value: object) -> Iterator[NDArray]:
    if isinstance(value, NDArray):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _arrays(item)
