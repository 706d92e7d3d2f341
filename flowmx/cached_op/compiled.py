"""A symbol compiled for arrays of certain shapes: the plan of a call, and its backward pass.

Each call takes a runner of the plan, and gives it back when it is done with it: after the forward pass, or where the
call is recorded, after the backward pass.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from operator import is_
from typing import Any

from flowmx.devices import Device
from flowmx.graph import collector
from flowmx.graph.compiler import in_room, options_of
from flowmx.graph.node import Entry, Node
from flowmx.graph.plan_cache import plan_of
from flowmx.graph.running.memory import Blocks, expected
from flowmx.graph.running.pool import Pool
from flowmx.graph.running.results import Results
from flowmx.graph.running.runner import Runner
from flowmx.graph.running.steps import launches
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import LIGHT_BYTES, Array, Shape

FORWARD = -1
"""The stage of a call that is no piece of its backward pass."""
_LIGHT_VALUES = 64
"""Values of which the graph of a light call may consist."""


class Compiled:
    """A symbol for arrays of certain shapes and dtypes, on one device, in one mode.

    Args:
        entries: the symbol's outputs.
        variables: its inputs, in order.
        wanted: those to differentiate by.
        shapes: of every entry.
        dtypes: likewise.
        device: where it runs.
        train: whether in training mode.
        pack: whether to keep packed copies of filters.
        blocks: where the memory comes from.
        data: positions of the inputs that are held for a call alone.
        varying: names of the inputs that are others in each call.
    """

    def __init__(
        self, entries: Sequence[Entry], variables: Sequence[Node], wanted: Collection[Node],
        shapes: dict[Entry, Shape], dtypes: dict[Entry, DType], device: Device, train: bool, pack: bool,
        blocks: Blocks, data: Sequence[int], varying: tuple[str, ...],
    ) -> None:  # fmt: skip
        self.device = device
        self.train = train
        self.entries = tuple(entries)
        self.shapes = shapes
        self.dtypes = dtypes
        self.variables = [Entry(node, 0) for node in variables]
        self.wanted = list(wanted)
        self.described = [(shapes[entry], dtypes[entry]) for entry in entries]
        """Shape and dtype of each output."""
        self.nbytes = sum(_nbytes(*result) for result in self.described)
        """Bytes of the outputs."""
        taken = sum(_nbytes(shapes[entry], dtypes[entry]) for entry in self.variables)
        self._is_light = 4 * taken <= LIGHT_BYTES and len(shapes) <= _LIGHT_VALUES
        self._given = list(data)
        self._kept = [at for at in range(len(self.variables)) if at not in {*data}]
        self._data = [self.variables[at] for at in data]
        self._varying = varying
        self._pack = pack
        self._blocks = blocks
        self._pool: Pool | None = None
        self._lock = threading.RLock()
        self._has_run: set[int] = set()

    @property
    def pool(self) -> Pool:
        """The plan's runners; it is compiled at first use: on a worker thread where possible."""
        if self._pool is None:
            with self._lock:
                if self._pool is None:
                    self._pool = self._compile()
        return self._pool

    @collector.paused()
    def _compile(self) -> Pool:
        context = self.device.context
        # A call runs its steps in a row: concurrent branches would only take more memory.
        options = replace(options_of(context.kernels), pack=self._pack, workers=1, varying=self._varying)
        if not (self.train or self.wanted):
            options = in_room(options, self.device, expected(self.device), self._blocks.idle_bytes)
        plan = plan_of(self.entries, self.wanted, self.shapes, self.dtypes, self.train, context, options, self.wanted)
        results = Results(plan)
        heads = [Entry(node, 0) for node in plan.graph.heads]
        given = [*self._data, *heads, *results.outputs, *results.gradients.values()]
        return Pool(results, self.device, self.train, "a cached graph", self._blocks, given)

    @property
    def results(self) -> Results:
        """The results of the plan."""
        return self.pool.results

    # -- running ---------------------------------------------------------------------------------------

    def is_light(self, stage: int) -> bool:
        """True if a stage is cheap enough to run on the pushing thread.

        It ran before: an event loop would neither wait for a plan nor for compiled kernels, and the plain ones round
        otherwise.

        Args:
            stage: FORWARD, or a piece of the backward pass.
        """
        return self._is_light and stage in self._has_run

    def forward(self, inputs: Sequence[Array], outputs: Sequence[Array], versions: Sequence[Any]) -> Runner:
        """Run the forward pass; returns the runner, which has what the backward pass needs.

        Args:
            inputs: an array for each variable.
            outputs: where to put the outputs.
            versions: for each variable what tells whether it has changed since another call.
        """
        runner = self.pool.take()
        # Parameters stay bound when a call is over, and most often are the same arrays in the next one.
        parameters = [inputs[at] for at in self._kept]
        if not (len(runner.kept) == len(parameters) and all(map(is_, parameters, runner.kept))):
            runner.bind([self.variables[at] for at in self._kept], parameters)
            runner.kept = parameters
        runner.bind(self._data, [inputs[at] for at in self._given])
        runner.bind(runner.results.outputs, outputs)
        runner.whole_forward.compute(tuple([versions[at] for at in self._read_once]))
        self._has_run.add(FORWARD)
        return runner

    @cached_property
    def _read_once(self) -> list[int]:
        """The positions of the variables from which something is computed that is kept from call to call."""
        read = {entry.node for node in self.results.plan.once for entry in node.inputs}
        return [at for at, entry in enumerate(self.variables) if entry.node in read]

    @cached_property
    def launches(self) -> int:
        """The number of launches of a forward pass, on a device that launches steps in a row as one."""
        plan = self.results.plan
        return launches(node for node in plan.forward if Entry(node, 0) not in plan.root)

    def begin_backward(self, runner: Runner, heads: Sequence[Array | None]) -> None:
        """Prepare the backward pass on what a forward pass left.

        Args:
            runner: the forward pass's.
            heads: a gradient for each output (None: the plan does not read it).
        """
        runner.bind([Entry(node, 0) for node in runner.plan.graph.heads], heads)

    def backward(self, runner: Runner, piece: int, gradients: dict[Node, Array]) -> None:
        """Run one piece of the backward pass, after those before it.

        Args:
            runner: the forward pass's.
            piece: which.
            gradients: where to put the gradients that it makes.
        """
        runner.bind([runner.results.gradients[node] for node in gradients], gradients.values())
        runner.backward_pieces[piece].compute()
        self._has_run.add(piece)

    @cached_property
    def read_backward(self) -> tuple[set[int], set[int], set[int]]:
        """Positions of the variables, of the outputs and of their gradients whose content a backward pass reads."""
        plan, targets = self.results.plan, self.results.outputs
        read = {plan.root.get(entry, entry) for node in plan.backward for entry in self._depends_on(node)}
        read |= {plan.root.get(entry, entry) for entry in plan.gradients.values()}
        return (
            {i for i, entry in enumerate(self.variables) if entry in read},
            {i for i, entry in enumerate(targets) if entry in read},
            {i for i, head in enumerate(plan.graph.heads) if Entry(head, 0) in read},
        )

    def _depends_on(self, node: Node) -> Collection[Entry]:
        """The inputs whose content decides what a step of the backward pass gives."""
        moved = node.op.moved_states() if node.op is not None and self.train else ()
        return {*node.contents()} - {node.inputs[position] for position in moved}


def _nbytes(shape: Shape, dtype: DType) -> int:
    return math.prod(shape) * dtype.itemsize
