"""Runners of one plan for calls: each call takes one, with memory, and gives it back when it is done with it."""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.devices import Device
from flowmx.graph import collector
from flowmx.graph.node import Entry
from flowmx.graph.running.memory import Blocks
from flowmx.graph.running.results import Results
from flowmx.graph.running.runner import Runner


class Pool:
    """The runners of a plan for one device, as many as have been at work at the same time.

    Args:
        results: of the plan.
        device: where it runs.
        train: whether in training mode.
        where: what messages call the graph.
        blocks: where the memory comes from; None: each runner has some of its own.
        given: the entries whose arrays are others in each call.
    """

    def __init__(
        self, results: Results, device: Device, train: bool, where: str, blocks: Blocks | None, given: Sequence[Entry]
    ) -> None:
        self.results = results
        self._made_of = results, {results.plan.graph.default: device}, train, where
        self._device = device
        self._blocks = blocks
        self._given = given
        self._nothing = [None] * len(given)
        self._free: list[Runner] = []

    def take(self) -> Runner:
        """A runner with memory, for one call."""
        try:
            runner = self._free.pop()
        except IndexError:
            runner = self._make()
        if self._blocks is not None:
            runner.block = self._blocks.take(runner, runner.block)
        return runner

    @collector.paused()
    def _make(self) -> Runner:
        runner = Runner(*self._made_of)
        runner.allocate_kept()
        if self._blocks is None:
            runner.block = Blocks(self._device).take(runner, None)
        return runner

    def give(self, runner: Runner) -> None:
        """Take a runner back, which then holds nothing of the call but the parameters."""
        runner.bind(self._given, self._nothing)
        if self._blocks is not None and runner.block is not None:
            self._blocks.give(runner.block)
        self._free.append(runner)
