"""A symbol compiled for arrays of certain shapes: the plan of a call, and its backward pass.

Each call takes a runner of the plan, and returns it at its end: after the forward pass, or for a recorded call, after
the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from operator import attrgetter, is_
from typing import Any, NamedTuple

from flowmx import forks
from flowmx.devices import Device
from flowmx.graph import collector
from flowmx.graph.capacity import bytes_of
from flowmx.graph.compiler import graph_of, options_of, with_memory_limit
from flowmx.graph.node import Entry, Node
from flowmx.graph.plan_cache import plan_of
from flowmx.graph.running.arenas import Blocks, expected
from flowmx.graph.running.pool import Pool
from flowmx.graph.running.results import Results
from flowmx.graph.running.runner import Readers, Runner
from flowmx.graph.running.steps import launches
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import LIGHT_BYTES, Array, Shape

FORWARD = -1
"""The stage of a call that is its forward pass; other stages are pieces of its backward pass."""
_LIGHT_VALUES = 64
"""The largest number of values in the graph of a light call."""


class Versions(NamedTuple):
    """The versions of variables when a call was pushed.

    Attributes:
        storages: the storages of the variables.
        numbers: the version of each.
        are_all: whether these are all variables, since it was not known which ones matter.
    """

    storages: tuple[Any, ...]
    numbers: tuple[int, ...]
    are_all: bool


class _Remembered(NamedTuple):
    """A call that may be repeated: its number, and its runner with the bound parameters.

    Attributes:
        versions: the versions of the variables from which reused values were computed.
        call: the readers of the data and of the outputs.
    """

    number: int
    runner: Runner
    parameters: Sequence[Array]
    versions: tuple[Any, ...]
    call: Sequence[Readers]


_version_of = attrgetter("version")


class Compiled:
    """A symbol for arrays of certain shapes and dtypes, on one device, in one mode.

    Args:
        entries: the symbol's outputs.
        variables: its inputs, in order.
        grad_variables: the differentiated inputs.
        shapes: the shape of every entry.
        dtypes: the dtype of every entry.
        device: the device.
        train: whether in training mode.
        pack: whether to keep packed copies of filters.
        blocks: supplies the memory.
        data: positions of the inputs that are bound only during a call.
        varying: names of the inputs that change with each call.
    """

    def __init__(
        self, entries: Sequence[Entry], variables: Sequence[Node], grad_variables: Collection[Node],
        shapes: dict[Entry, Shape], dtypes: dict[Entry, DType], device: Device, train: bool, pack: bool,
        blocks: Blocks, data: Sequence[int], varying: tuple[str, ...],
    ) -> None:  # fmt: skip
        self.device = device
        self.train = train
        self.entries = tuple(entries)
        self.shapes = shapes
        self.dtypes = dtypes
        self.variables = [Entry(node, 0) for node in variables]
        self.grad_variables = list(grad_variables)
        self.output_types = [(shapes[entry], dtypes[entry]) for entry in entries]
        """Shape and dtype of each output."""
        self.nbytes = sum(_nbytes(*result) for result in self.output_types)
        """Bytes of the outputs."""
        nbytes = sum(_nbytes(shapes[entry], dtypes[entry]) for entry in self.variables)
        self.used = 0
        self._is_light = 4 * nbytes <= LIGHT_BYTES and len(shapes) <= _LIGHT_VALUES
        self._data_positions = list(data)
        self._parameter_positions = [at for at in range(len(self.variables)) if at not in {*data}]
        self._data = [self.variables[at] for at in data]
        self._varying = varying
        self._pack = pack
        self._blocks = blocks
        self._pool: Pool | None = None
        self._lock = forks.lock()
        self._has_run: set[int] = set()
        self.is_short = False
        """Whether a forward pass takes so little time that the caller runs it."""
        self._remembered: _Remembered | None = None
        self._no_arrays = [None] * (len(self._data) + len(self.output_types))
        # A plan with gradients has about three times the values.
        self._own_bytes = bytes_of(len(shapes) * (3 if grad_variables else 1))

    @property
    def held_bytes(self) -> int:
        """The approximate bytes of the plan and its runners, besides memory shared with other shapes."""
        return self._own_bytes if self._pool is None else self._own_bytes + self._pool.held_bytes

    @property
    def is_planned(self) -> bool:
        """Whether the plan is ready, so that reading :attr:`pool` does not block."""
        return self._pool is not None

    @cached_property
    def differentiated(self) -> Collection[Node]:
        """The inputs that have gradients, known from the graph before it is planned."""
        with collector.paused():
            graph = graph_of(
                self.entries, self.grad_variables, self.shapes, self.dtypes, self.train, self.device.context
            )
        return graph.gradients.keys()

    @property
    def pool(self) -> Pool:
        """The plan's runners; compiled at first use, on a worker thread if possible."""
        if self._pool is None:
            with self._lock:
                if self._pool is None:
                    self._pool = self._compile()
        return self._pool

    @collector.paused()
    def _compile(self) -> Pool:
        context = self.device.context
        # A call runs its steps in order: concurrent branches would only take more memory.
        options = replace(options_of(context.kernels), pack=self._pack, workers=1, varying=self._varying)
        if not (self.train or self.grad_variables):
            options = with_memory_limit(options, self.device, expected(self.device), self._blocks.idle_bytes)
        plan = plan_of(
            self.entries,
            self.grad_variables,
            self.shapes,
            self.dtypes,
            self.train,
            context,
            options,
            self.grad_variables,
        )
        results = Results(plan)
        heads = [Entry(node, 0) for node in plan.graph.heads]
        call_entries = [*self._data, *heads, *results.outputs, *results.gradients.values()]
        read = {entry.node.name for node in plan.once for entry in node.inputs}
        names = [entry.node.name for entry in self.variables if entry.node.name in read]
        variables = {name: position for position, name in enumerate(names)}
        is_shared = len(variables) == len(names)  # else names are ambiguous
        return Pool(
            results, self.device, self.train, "a cached graph", self._blocks, call_entries,
            variables if is_shared else None,
        )  # fmt: skip

    @property
    def results(self) -> Results:
        """The results of the plan."""
        return self.pool.results

    # -- running ---------------------------------------------------------------------------------------

    def is_light(self, stage: int) -> bool:
        """Return whether a stage is cheap enough to run on the pushing thread.

        It must have run before: an event loop would block for a plan or for compiled kernels, and the uncompiled
        fallback rounds differently.

        Args:
            stage: FORWARD, or a piece of the backward pass.
        """
        return (self._is_light and stage in self._has_run) or (stage == FORWARD and self.is_short)

    def versions(self, storages: Sequence[Any]) -> Versions:
        """Return the versions of the variables from which reused values are computed.

        Args:
            storages: the storage of each variable.
        """
        are_all = self._pool is None
        chosen = tuple(storages) if are_all else self._reused(storages)
        return Versions(chosen, tuple(map(_version_of, chosen)), are_all)

    def forward(self, inputs: Sequence[Array], outputs: Sequence[Array], versions: Versions) -> Runner:
        """Run the forward pass; return the runner, which holds the values for the backward pass.

        Args:
            inputs: an array for each variable.
            outputs: the arrays for the outputs.
            versions: the result of :meth:`versions` when the call was pushed, to detect changes between calls.
        """
        runner = self.pool.take()
        self._bind_parameters(runner, inputs)
        runner.bind(self._data, [inputs[at] for at in self._data_positions])
        runner.bind(runner.results.outputs, outputs)
        self._compute(runner, versions)
        return runner

    def predict(self, inputs: Sequence[Array], outputs: Sequence[Array], versions: Versions) -> None:
        """Run the forward pass of a call without a backward pass; for the arguments see :meth:`forward`."""
        self._predict(self.pool.take(), inputs, outputs, versions)

    def predict_shortly(self, inputs: Sequence[Array], outputs: Sequence[Array], versions: Versions) -> None:
        """Do the same as :meth:`predict` in little time.

        Raises:
            LookupError: it would take longer, for example because a runner must be made; nothing was computed.
        """
        runner = self.pool.take_short()
        if runner is None:
            raise LookupError("no runner is free")
        self._predict(runner, inputs, outputs, versions)

    def _predict(
        self, runner: Runner, inputs: Sequence[Array], outputs: Sequence[Array], versions: Versions
    ) -> None:  # fmt: skip
        self._bind_parameters(runner, inputs)
        arrays = [*[inputs[at] for at in self._data_positions], *outputs]
        if runner.call is None:
            runner.call = runner.readers([*self._data, *runner.results.outputs])
        runner.bind_call(runner.call, arrays)
        self._compute(runner, versions)
        runner.bind_call(runner.call, [None] * len(arrays))
        self.pool.give_unbound(runner)

    def remember_call(self, parameters: Sequence[Array]) -> int:
        """Remember a short call for :meth:`predict_again`.

        Args:
            parameters: the arrays of the parameters.

        Returns:
            The number of the remembered call; 0 if the last call was not short, or had other parameters.
        """
        runner = self.pool.take_short()
        if runner is None:
            return 0
        is_same = runner.call is not None and all(map(is_, parameters, runner.parameters))
        self.pool.give_unbound(runner)
        if not is_same or runner.call is None:
            return 0
        number = 1 if self._remembered is None else self._remembered.number + 1
        self._remembered = _Remembered(
            number, runner, runner.parameters, runner.whole_forward.versions or (), runner.call
        )
        return number

    def predict_again(self, number: int, arrays: Sequence[Array]) -> None:
        """Predict with the parameters of a remembered call, which have not changed, in little time.

        Args:
            number: the number of the remembered call.
            arrays: the arrays of the data and of the outputs.

        Raises:
            LookupError: a general call is needed; nothing was computed.
        """
        last, runner = self._remembered, self.pool.take_short()
        if (
            last is None
            or last.number != number
            or runner is not last.runner
            or runner.parameters is not last.parameters
        ):
            if runner is not None:
                self.pool.give_unbound(runner)
            raise LookupError("the runner is in use, or has other parameters")
        _, _, _, versions, call = last
        runner.bind_call(call, arrays)
        runner.whole_forward.compute(versions)
        runner.bind_call(call, self._no_arrays)
        self.pool.give_unbound(runner)

    def _bind_parameters(self, runner: Runner, inputs: Sequence[Array]) -> None:
        """Bind the parameters of a call, if they are not bound."""
        # Parameters stay bound after a call, and are usually the same arrays in the next one.
        parameters = [inputs[at] for at in self._parameter_positions]
        if not (len(runner.parameters) == len(parameters) and all(map(is_, parameters, runner.parameters))):
            runner.bind([self.variables[at] for at in self._parameter_positions], parameters)
            runner.parameters = parameters

    def _compute(self, runner: Runner, versions: Versions) -> None:
        """Run the forward pass on the bound arrays."""
        whole = runner.whole_forward
        compared: tuple[Any, ...] = ()
        if whole.once:
            storages, numbers, are_all = versions
            compared = (self._reused(storages), self._reused(numbers)) if are_all else (storages, numbers)
        whole.compute(compared)
        self.is_short = whole.is_short
        self._has_run.add(FORWARD)

    def _reused(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Select from values, one for each variable, those of the variables from which reused values are computed."""
        return tuple([values[at] for at in self._read_once])

    @cached_property
    def _read_once(self) -> list[int]:
        """The positions of the variables from which reused values are computed."""
        read = {entry.node for node in self.results.plan.once for entry in node.inputs}
        return [at for at, entry in enumerate(self.variables) if entry.node in read]

    @cached_property
    def launches(self) -> int:
        """The number of launches of a forward pass, on a device that launches consecutive steps as one."""
        plan = self.results.plan
        return launches(node for node in plan.forward if Entry(node, 0) not in plan.root)

    def begin_backward(self, runner: Runner, heads: Sequence[Array | None]) -> None:
        """Prepare the backward pass after a forward pass.

        Args:
            runner: the runner of the forward pass.
            heads: a gradient for each output (None: the plan does not read it).
        """
        runner.bind([Entry(node, 0) for node in runner.plan.graph.heads], heads)

    def backward(self, runner: Runner, piece: int, gradients: dict[Node, Array]) -> None:
        """Run one piece of the backward pass, after those before it.

        Args:
            runner: the runner of the forward pass.
            piece: the number of the piece.
            gradients: the arrays for the gradients that it completes.
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
        """Return the inputs whose content a step of the backward pass depends on."""
        moved = node.op.updated_states() if node.op is not None and self.train else ()
        return {*node.contents()} - {node.inputs[position] for position in moved}


def _nbytes(shape: Shape, dtype: DType) -> int:
    return math.prod(shape) * dtype.itemsize
