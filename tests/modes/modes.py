"""The table of modes: a network returns the same results in each."""

import contextlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import flowmx as mx
from flowmx.devices import cpu_pool
from flowmx.devices.sim import simulated
from flowmx.engine.runtime import engine
from tests.modes import lots, runners
from tests.native_runs import eager_native_runs
from tests.replays import eager_replays
from tests.slicing import eager_slices


@dataclass(frozen=True)
class Mode:
    """A way to run a network.

    Attributes:
        runner: what does it.
        dtype: of parameters and inputs.
        devices: among which a batch is split.
        hybridize: the arguments of ``hybridize``, or None if it is not called.
        children: hybridize the children one by one.
        turns: hybridize it for every other step alone.
        imported: write the block to files, and read it back.
        partitioned: some operators are in regions, which are chosen by lot.
        settings: those of the engine.
        simulated: the arguments of a simulated machine, or None.
        budgets: parts of its memory that a training step is to fit into, the first of them that it can.
        leaves_out: kinds of steps that the mode does not support.
        replayed: run twice, so that backward passes are learned and then replayed.
        eagerly_native: native calls are recorded in the first run of a graph.
        eagerly_sliced: predictions are sliced wherever that saves memory.
        bulk: how many operations are combined into one.
        like: the mode with the same kernels, whose results must be bit-identical. If None, the mode is compared with
            the reference.
        of_its_own: kinds of steps with other kernels than that mode; a network with such a step is compared with the
            reference.
    """

    runner: type[runners.Runner] = runners.Gluon
    dtype: str = "float32"
    devices: tuple[str, ...] = ("cpu(0)",)
    hybridize: dict[str, bool] | None = None
    children: bool = False
    turns: bool = False
    imported: bool = False
    partitioned: bool = False
    settings: dict[str, object] = field(default_factory=dict)
    simulated: dict[str, object] | None = None
    budgets: tuple[float, ...] = ()
    leaves_out: tuple[str, ...] = ()
    replayed: bool = False
    eagerly_native: bool = False
    eagerly_sliced: bool = False
    bulk: int = 0
    like: str = ""
    of_its_own: tuple[str, ...] = ()

    def like_of(self, network):
        """Return the mode with the same kernels for all steps of a network."""
        return "" if any(step.kind in self.of_its_own for step in network.steps) else self.like

    def prepare(self, net, network):
        """Hybridize the block of a network for this mode."""
        if self.hybridize is not None:
            chosen = lots.options(network) if self.partitioned else {}
            for block in net._children.values() if self.children and net._children else [net]:
                block.hybridize(**self.hybridize, **chosen)

    def begin(self, runner, number):
        """Prepare for a step."""
        if self.turns:
            runner.net.hybridize(number % 2 == 0, **self.hybridize)

    def fits(self, network):
        """Return whether a network can run in this mode."""
        if network.plain and (self.imported or self.is_symbolic):
            return False
        if self.runner is runners.Module and network.request != "add" and any(s.kind == "twice" for s in network.steps):
            return False  # it updates by the gradients of its last batch
        if len(self.devices) > 1:
            return not network.scalar and all(step.batch > 1 for step in network.steps)
        return True

    @property
    def is_symbolic(self):
        """Return whether the mode runs a symbol."""
        return issubclass(self.runner, runners.Symbolic)

    @property
    def is_compiled(self):
        """Return whether the mode runs a graph."""
        return self.is_symbolic or self.imported or self.hybridize is not None

    def reference(self, network):
        """Return the reference mode.

        Regions change the order in which operators outside them draw random numbers, since an operator runs after all
        inputs of the regions that it reads. So a network that draws is partitioned in its reference, too.
        """
        devices = tuple(f"cpu({number})" for number in range(len(self.devices)))
        partitioned = self.partitioned and network.draws
        composed = {} if self.is_compiled and (network.loose or partitioned) else None
        of_parts = {"turns": self.turns, "children": self.children} if composed is not None else {}
        return replace(REFERENCE, devices=devices, hybridize=composed, partitioned=partitioned, **of_parts)

    def run(self, network, grid, wrap=None):
        """Run a network; returns the record."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(spoiled())
            if self.settings:
                stack.enter_context(mx.engine.using(**self.settings))
            if self.eagerly_sliced:
                stack.enter_context(eager_slices())
            if self.eagerly_native:
                stack.enter_context(eager_native_runs())
            if self.bulk:
                stack.enter_context(mx.engine.bulk(self.bulk))
            if self.simulated is not None:
                stack.enter_context(simulated("gtx980", len(self.devices), **self.simulated))
            try:
                if self.replayed:
                    stack.enter_context(eager_replays())
                    self.runner(network, self, grid, wrap).run()
                return self.runner(network, self, grid, wrap).run()
            finally:
                engine.failures.clear()


@contextlib.contextmanager
def spoiled():
    """Fill new arrays with NaN, so that unwritten memory is detected."""
    real = cpu_pool.allocate

    def allocate(shape, dtype):
        array = real(shape, dtype)
        array.reshape(-1).view(np.uint8)[...] = 255
        return array

    cpu_pool.allocate = allocate
    try:
        yield
    finally:
        cpu_pool.allocate = real


STATIC = {"static_alloc": True}
BOTH = {"static_alloc": True, "static_shape": True}
SYMBOLIC: dict[str, Any] = {"leaves_out": ("frozen",)}
TWO = ("cpu(0)", "cpu(1)")
REFERENCE = Mode(dtype="float64")


def _more_dtypes():
    """Return the same modes with other dtypes."""
    for dtype in ("float64", "float16", "bfloat16"):
        like = f"{dtype}, hybridized"
        if dtype != "float64":
            yield f"{dtype}, imperative", Mode(dtype=dtype)
        yield like, Mode(dtype=dtype, hybridize=STATIC)
        yield f"{dtype}, sliced", Mode(dtype=dtype, hybridize=STATIC, settings={"exec_slice": 1})
        yield f"{dtype}, imported", Mode(dtype=dtype, hybridize=STATIC, imported=True, like=like)
        yield f"{dtype}, executor", Mode(runners.Bound, dtype=dtype, like=like, **SYMBOLIC)
        yield f"{dtype}, budget", Mode(runners.Joint, dtype=dtype, budgets=(0.2, 0.5), **SYMBOLIC)


CALLS: dict[str, Any] = {"like": "imperative"}
GRAPHS: dict[str, Any] = {"like": "hybridized"}
PACKED: dict[str, Any] = {"like": "static shape"}
MODES = {
    "imperative": Mode(),
    "imperative, call by call": Mode(settings={"backward_bulks": False}, **CALLS),
    "imperative, replayed": Mode(replayed=True, **CALLS),
    "imperative, bulked": Mode(bulk=15, **CALLS),
    "imperative, naive": Mode(settings={"engine_type": "NaiveEngine"}, **CALLS),
    "hybridized": Mode(hybridize={}),
    "static": Mode(hybridize=STATIC, **GRAPHS),
    "static shape": Mode(hybridize=BOTH),
    "children": Mode(hybridize=BOTH, children=True),
    "by turns": Mode(hybridize=BOTH, turns=True),
    "mirrored": Mode(hybridize={}, settings={"backward_do_mirror": True}, **GRAPHS),
    "unshared": Mode(hybridize={}, settings={"exec_enable_inplace": False, "exec_match_range": 0}, **GRAPHS),
    "checked": Mode(hybridize=STATIC, settings={"exec_check": True, "engine_check": True}, **GRAPHS),
    # Slices have kernels for fewer examples, which add up in a different order.
    "sliced": Mode(hybridize=BOTH, settings={"exec_slice": 1}),
    "sliced by choice": Mode(hybridize=STATIC, eagerly_sliced=True),
    "partitioned, sliced": Mode(hybridize=STATIC, partitioned=True, settings={"exec_slice": 1}),
    "sliced, checked": Mode(hybridize=STATIC, settings={"exec_slice": 2, "exec_check": True, "engine_check": True}),
    "native runs": Mode(hybridize=BOTH, eagerly_native=True, **PACKED),
    "native runs, training": Mode(hybridize=STATIC, eagerly_native=True, **GRAPHS),
    "native runs, executor": Mode(runners.Bound, eagerly_native=True, **SYMBOLIC, **GRAPHS),
    "no native runs": Mode(hybridize=BOTH, settings={"native_runs": False}, **PACKED),
    "naive": Mode(hybridize=BOTH, settings={"engine_type": "NaiveEngine"}, **PACKED),
    "pooled": Mode(hybridize=STATIC, settings={"engine_type": "ThreadedEngine"}, **GRAPHS),
    "executor": Mode(runners.Bound, **SYMBOLIC, **GRAPHS),
    "executor, mirrored": Mode(runners.Bound, settings={"backward_do_mirror": True}, **SYMBOLIC, **GRAPHS),
    "executor, branches": Mode(
        runners.Bound, devices=("cpu(12)",), settings={"cpu_worker_nthreads": 2}, **SYMBOLIC, **GRAPHS
    ),
    "executor, sliced by choice": Mode(runners.Bound, eagerly_sliced=True, **SYMBOLIC),
    "executor, sliced": Mode(runners.Bound, settings={"exec_slice": 1}, **SYMBOLIC),
    # Gradients of slices are summed in a different order.
    "executor, budget": Mode(runners.Joint, budgets=(0.1, 0.25, 0.5, 0.7), **SYMBOLIC),
    "executor, budget, passes apart": Mode(runners.Apart, budgets=(0.15, 0.3, 0.5, 0.7), **SYMBOLIC),
    "executor, budget, passes apart, checked": Mode(
        runners.Apart, budgets=(0.25, 0.6), settings={"exec_check": True, "engine_check": True}, **SYMBOLIC
    ),
    "executor, budget, checked": Mode(
        runners.Joint, budgets=(0.3, 0.6), settings={"exec_check": True, "engine_check": True}, **SYMBOLIC
    ),
    # A module keeps what a backward pass would read, so that fewer operations become one kernel.
    "module": Mode(runners.Module, of_its_own=("observe",), **SYMBOLIC, **GRAPHS),
    "imported": Mode(hybridize=BOTH, imported=True, **PACKED),
    "partitioned": Mode(hybridize=STATIC, partitioned=True),
    "partitioned, imported": Mode(hybridize=BOTH, partitioned=True, imported=True),
    "partitioned, executor": Mode(runners.Bound, partitioned=True, **SYMBOLIC),
    "two devices": Mode(devices=TWO),
    "two devices, hybridized": Mode(hybridize=BOTH, devices=TWO),
    "two devices, module": Mode(runners.Module, devices=TWO, **SYMBOLIC),
    "simulated": Mode(devices=("sim(0)",), simulated={}, **CALLS),
    "simulated, hybridized": Mode(hybridize=BOTH, devices=("sim(0)",), simulated={"seed": 5}, **PACKED),
    "simulated, sliced": Mode(
        hybridize=BOTH, devices=("sim(0)",), simulated={"seed": 7}, settings={"exec_slice": 1, "gpu_worker_nthreads": 1}
    ),
    "simulated, sliced for graphs": Mode(
        hybridize=STATIC, devices=("sim(0)",), simulated={"seed": 8, "graphs": True}, settings={"exec_slice": 1}
    ),
    "simulated, budget": Mode(
        runners.Joint, devices=("sim(0)",), simulated={"seed": 6}, budgets=(0.1, 0.25, 0.5, 0.7), **SYMBOLIC
    ),
    "simulated, plain kernels": Mode(hybridize=BOTH, devices=("sim(0)",), simulated={"kernels": "none"}),
    **dict(_more_dtypes()),
}
