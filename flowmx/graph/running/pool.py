"""Runners of one plan for calls: each call takes one, with memory, and returns it at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from flowmx.devices import Device
from flowmx.graph import collector
from flowmx.graph.node import Entry
from flowmx.graph.running.arenas import Blocks
from flowmx.graph.running.results import Results
from flowmx.graph.running.runner import Runner
from flowmx.graph.running.shared_copies import RunnerCopies


class Pool:
    """The runners of a plan for one device: as many as have run concurrently.

    Args:
        results: the plan's results.
        device: the device.
        train: whether in training mode.
        where: the name of the graph in messages.
        blocks: supplies the memory (None: each runner allocates some).
        call_entries: the entries whose arrays change with each call.
        variables: the position, in the versions of a call, of each variable that values computed once depend on, by
            name. With it, runners share such values with those of other plans; None: they do not.
    """

    def __init__(
        self, results: Results, device: Device, train: bool, where: str, blocks: Blocks | None,
        call_entries: Sequence[Entry], variables: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        self.results = results
        self._arguments = results, {results.plan.graph.default: device}, train, where
        self._device = device
        self._blocks = blocks
        self._call_entries = call_entries
        self._nothing = [None] * len(call_entries)
        self._variables = variables
        self._copies: list[RunnerCopies] = []
        self._free: list[Runner] = []
        self._own_bytes = 0

    @property
    def held_bytes(self) -> int:
        """The bytes that its runners keep from call to call, such as packed filters."""
        return self._own_bytes + sum(copies.nbytes for copies in list(self._copies))

    def take(self) -> Runner:
        """Return a runner with memory, for one call."""
        try:
            runner = self._free.pop()
        except IndexError:
            runner = self._make()
        if self._blocks is not None:
            runner.block = self._blocks.take(runner, runner.block)
        return runner

    def take_short(self) -> Runner | None:
        """Return a free runner with memory, if its forward pass takes little time; otherwise None."""
        try:
            runner = self._free.pop()
        except IndexError:
            return None
        if not runner.whole_forward.is_short:
            self._free.append(runner)
            return None
        if self._blocks is not None:
            runner.block = self._blocks.take(runner, runner.block)
        return runner

    @collector.paused()
    def _make(self) -> Runner:
        runner = Runner(*self._arguments)
        plan = self.results.plan
        own = set(plan.separate)
        if self._blocks is not None and self._variables is not None and not self._device.is_asynchronous:
            with suppress(KeyError):  # a value depends on a variable whose version is not known
                runner.copies = RunnerCopies(self._blocks.copies, runner, self._variables)
                self._copies.append(runner.copies)
                own -= runner.copies.entries
        runner.allocate_separate(own)
        self._own_bytes += sum(map(plan.nbytes, own))
        if self._blocks is None:
            runner.block = Blocks(self._device).take(runner, None)
        return runner

    def give(self, runner: Runner) -> None:
        """Take a runner back, and unbind the arrays of the call except the parameters."""
        runner.bind(self._call_entries, self._nothing)
        self.give_unbound(runner)

    def give_unbound(self, runner: Runner) -> None:
        """Take back a runner to which no arrays of the call are bound."""
        if self._blocks is not None and runner.block is not None:
            self._blocks.give(runner.block)
        self._free.append(runner)
