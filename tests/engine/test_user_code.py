"""User code is queued: at each entry point it runs on a separate thread, and never under the engine's lock.

The tests call each entry point several times on small arrays, since a small operation that has run before may run at
its push.
"""

import asyncio
import contextlib
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowmx as mx
from flowmx.cached_op import CachedOp
from flowmx.engine import engine
from flowmx.observability.safety import stop_at_nan

TIMEOUT = 10
KINDS = ["ThreadedEnginePerDevice", "ThreadedEngine"]


class Probe:
    """User code that records where it runs.

    Attributes:
        returned: set by the test when the call that enqueues has returned; the code waits for it.
        faults: the faults that were detected.
        calls: the number of runs.
        error: the exception to raise.
    """

    def __init__(self):
        self.returned = threading.Event()
        self.faults = []
        self.calls = 0
        self.error = None

    def __call__(self, wait=True):
        """Wait for the caller, then use the engine from another thread, like a thread pool in user code."""
        self.calls += 1
        if engine.lock._is_owned():
            self.faults.append("the engine is locked")
        if wait and not self.returned.wait(TIMEOUT):
            self.faults.append("the caller waits for it")
        done = threading.Event()
        threading.Thread(target=lambda: ((mx.nd.ones(3) * 2).wait_to_read(), done.set()), daemon=True).start()
        if not done.wait(TIMEOUT):
            self.faults.append("another thread cannot use the engine")
        if self.error is not None:
            raise self.error

    async def awaited(self):
        self.calls += 1
        if engine.lock._is_owned():
            self.faults.append("the engine is locked")
        await asyncio.get_running_loop().run_in_executor(None, self.returned.wait, TIMEOUT)
        await (mx.nd.ones(3) * 2)
        if self.error is not None:
            raise self.error

    def check(self, at_least=1):
        assert not self.faults
        assert self.calls >= at_least


probe = Probe()


class Plain(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        probe()
        self.assign(out_data[0], req[0], in_data[0] * 2)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        probe()
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


class Async(mx.operator.CustomOp):
    async def forward(self, is_train, req, in_data, out_data, aux):
        await probe.awaited()
        self.assign(out_data[0], req[0], in_data[0] * 2)

    async def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        await probe.awaited()
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


@mx.operator.register("probed")
class PlainProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, in_shapes, in_dtypes):
        return Plain()


@mx.operator.register("probed_async")
class AsyncProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, in_shapes, in_dtypes):
        return Async()


def _sparse_types(self, in_stype):
    return ["row_sparse"], ["row_sparse"], []


for name, prop in (("probed", PlainProp), ("probed_async", AsyncProp)):
    mx.operator.register(f"{name}_sparse")(type("SparseProp", (prop,), {"infer_storage_type": _sparse_types}))


@pytest.fixture(params=["probed", "probed_async"])
def twice(request):
    """Return the name of a custom operator that doubles its input."""
    return request.param


@pytest.fixture(autouse=True)
def fresh_probe():
    global probe
    probe = Probe()


@pytest.fixture(params=KINDS)
def kind(request):
    with mx.engine.using(engine_type=request.param):
        yield request.param
        mx.nd.waitall()


def composed(twice, after=lambda S, x: x + 1):
    """Return a symbol that doubles and adds 1: 3 for an input of ones."""
    return after(mx.sym, mx.sym.Custom(mx.sym.var("data"), op_type=twice, name="twice"))


class Net(mx.gluon.HybridBlock):
    def __init__(self, twice):
        super().__init__()
        self.twice = twice

    def hybrid_forward(self, F, x):
        return F.Custom(x, op_type=self.twice) + 1


def called(net):
    return lambda: net(mx.nd.ones((1, 3)))


def recorded(net):
    """Return the gradient of a call, which is 2 for each element."""

    def call():
        x = mx.nd.ones((1, 3))
        x.attach_grad()
        with mx.autograd.record():
            y = net(x)
        y.backward()
        return x.grad + 1

    return call


def hybridized(twice, **how):
    net = Net(twice)
    net.hybridize(**how)
    return net


def in_bulk(twice):
    def call():
        with mx.engine.bulk(10):
            return mx.nd.Custom(mx.nd.ones((1, 3)) * 1, op_type=twice) + 1

    return call


def bound(twice):
    exe = composed(twice).bind(mx.cpu(), {"data": mx.nd.ones((1, 3))})
    return lambda: exe.forward()[0].copy()


def bound_and_trained(twice):
    exe = composed(twice).simple_bind(mx.cpu(), data=(1, 3))

    def call():
        exe.forward(is_train=True, data=mx.nd.ones((1, 3)))
        exe.backward(mx.nd.ones((1, 3)))
        return exe.grad_dict["data"] + 1

    return call


def monitored(twice):
    exe = composed(twice).bind(mx.cpu(), {"data": mx.nd.ones((1, 3))})
    exe.set_monitor_callback(lambda name, array: None)
    return lambda: exe.forward()[0].copy()


def module(twice):
    mod = mx.mod.Module(composed(twice), label_names=None)
    mod.bind([("data", (1, 3))], for_training=False)
    mod.init_params()
    batch = mx.io.DataBatch([mx.nd.ones((1, 3))])

    def call():
        mod.forward(batch)
        return mod.get_outputs()[0].copy()

    return call


def looped(body):
    """Return one step of a loop over the custom operator."""

    class Loop(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return body(F, x)

    net = Loop()
    net.hybridize()
    return net


def foreach(twice):
    def step(F, x, state):
        y = F.Custom(x, op_type=twice)
        return y + 1, state

    return looped(
        lambda F, x: F.contrib.foreach(lambda x, s: step(F, x, s), F.expand_dims(x, 0), [])[0].reshape((1, 3))
    )


def while_loop(twice):
    def body(F):
        return lambda i, x: ([], [i + 1, F.Custom(x, op_type=twice)])

    def forward(F, x):
        start = F.zeros((1,))
        actual = F.contrib.while_loop(lambda i, x: i < 1, body(F), [start, x], max_iterations=1)
        return actual[1][1] + 1

    return looped(forward)


def cond(twice):
    def forward(F, x):
        yes = F.sum(x) > 0
        return F.contrib.cond(yes, lambda: F.Custom(x, op_type=twice) + 1, lambda: x)

    return looped(forward)


def partitioned(twice):
    @mx.sym.register_partitioner("all_of_it")
    class All(mx.sym.Partitioner):
        def select(self, node):
            return True

    return CachedOp(composed(twice).optimize_for("all_of_it"))


def extension(twice):
    """Return an operator from a file that mx.library loads."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"loaded_{twice}.py")
        path.write_text(
            f"""import flowmx as mx
from flowmx.ops.control import custom
mx.operator.register("loaded_{twice}")(custom.properties["{twice}"])
"""
        )
        mx.library.load(path, verbose=False)
    return called(CachedOp(getattr(mx.sym, f"loaded_{twice}")(mx.sym.var("data"), name="twice") + 1))


def quantized(twice):
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, no_bias=True, name="fc")
    symbol = mx.sym.Custom(data, op_type=twice, name="twice") + 1
    result, params, _ = mx.contrib.quantization.quantize_model(
        symbol, {"fc_weight": mx.nd.array(np.eye(3))}, {}, label_names=None, calib_mode="none", quantized_dtype="int8"
    )
    exe = result.bind(mx.cpu(), {"data": mx.nd.ones((1, 3)), **params})
    return lambda: exe.forward()[0].round()


def in_mixed_precision(twice):
    return CachedOp(mx.contrib.amp.convert_symbol(composed(twice), target_dtype="float16"))


def recorded_backward(twice):
    net = Net(twice)

    def call():
        x = mx.nd.ones((1, 3))
        x.attach_grad()
        with mx.autograd.record():
            y = net(x)
            return mx.autograd.grad(y, [x], create_graph=True)[0] + 1

    return call


def on_sparse(twice):
    rows = mx.nd.ones((1, 3)).tostype("row_sparse")
    return lambda: mx.nd.Custom(rows, op_type=f"{twice}_sparse").tostype("default") + 1


def simulated(twice):
    net = hybridized(twice)
    return lambda: net(mx.nd.ones((1, 3), ctx=mx.sim(0)))


ENTRANCES = {
    "imperative": lambda twice: called(Net(twice)),
    "hybridized": lambda twice: called(hybridized(twice)),
    "static": lambda twice: called(hybridized(twice, static_alloc=True, static_shape=True)),
    "symbol block": lambda twice: called(mx.gluon.SymbolBlock(composed(twice), mx.sym.var("data"))),
    "cached graph": lambda twice: called(CachedOp(composed(twice))),
    "cached graph that hides it": lambda twice: called(CachedOp(composed(twice, lambda S, x: S.relu(x + 1)))),
    "bound": bound,
    "bound, backward": bound_and_trained,
    "monitored": monitored,
    "module": module,
    "bulk": in_bulk,
    "backward": lambda twice: recorded(Net(twice)),
    "backward of a hybridized one": lambda twice: recorded(hybridized(twice)),
    "backward of a static one": lambda twice: recorded(hybridized(twice, static_alloc=True, static_shape=True)),
    "backward of a replayed tape": lambda twice: recorded(lambda x: mx.nd.Custom(x * 1, op_type=twice) * 1),
    "recorded backward": recorded_backward,
    "extension": extension,
    "foreach": lambda twice: called(foreach(twice)),
    "while_loop": lambda twice: called(while_loop(twice)),
    "cond": lambda twice: called(cond(twice)),
    "backward of foreach": lambda twice: recorded(foreach(twice)),
    "backward of while_loop": lambda twice: recorded(while_loop(twice)),
    "backward of cond": lambda twice: recorded(cond(twice)),
    "partitioned": lambda twice: called(partitioned(twice)),
    "quantized": quantized,
    "mixed precision": lambda twice: called(in_mixed_precision(twice)),
    "sparse": on_sparse,
    "simulated device": simulated,
}


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_the_call_only_enqueues(entrance, twice, kind):
    probe.returned.set()
    call = ENTRANCES[entrance](twice)
    for _ in range(4):
        probe.returned.clear()
        try:
            y = call()
        finally:
            probe.returned.set()
        np.testing.assert_allclose(y.asnumpy(), np.full((1, 3), 3.0))
    probe.check(4)


@contextlib.contextmanager
def profiled():
    with tempfile.TemporaryDirectory() as folder:
        mx.profiler.set_config(filename=str(Path(folder, "profile.json")))
        mx.profiler.set_state("run")
        try:
            yield
        finally:
            mx.profiler.set_state("stop")


MODES: dict[str, Any] = {
    "profiled": profiled,
    "engine checked": lambda: mx.engine.using(engine_check=True),
    "graphs checked": lambda: mx.engine.using(exec_check=True),
    "watched for NaN": stop_at_nan,
    "in a bulk": lambda: mx.engine.bulk(8),
}


@pytest.mark.parametrize("mode", MODES)
def test_user_code_runs_in_other_modes(mode, twice):
    for entrance, make in ENTRANCES.items():
        if (mode, entrance) == ("engine checked", "simulated device"):  # it reads host memory
            continue
        probe.returned.set()
        with MODES[mode]():
            call = make(twice)
            for _ in range(2):
                probe.returned.clear()
                try:
                    y = call()
                finally:
                    probe.returned.set()
                np.testing.assert_allclose(y.asnumpy(), np.full((1, 3), 3.0), err_msg=entrance)
    probe.check(2 * len(ENTRANCES) - 2)


async def _predicted(predictor):
    return mx.nd.array(await predictor(np.ones(3, np.float32))).reshape((1, 3))


def test_a_predictor_serves_it_without_holding_the_engine(twice):
    async def main():
        async with mx.serve.Predictor(Net(twice), shape=(3,), max_batch=1) as predictor:
            for _ in range(3):
                probe.returned.clear()
                actual = asyncio.ensure_future(_predicted(predictor))
                await asyncio.sleep(0)
                (mx.nd.ones(3) + 1).wait_to_read()
                probe.returned.set()
                np.testing.assert_allclose((await actual).asnumpy(), np.full((1, 3), 3.0))

    probe.returned.set()
    mx.run(main())
    probe.check(3)


def pushed():
    return mx.engine.push(probe)


def pushed_coroutine():
    return mx.engine.push(probe.awaited)


def deleted():
    return mx.engine.delete_variable(mx.engine.Variable("gone"), probe)


@pytest.mark.parametrize("push", [pushed, pushed_coroutine, deleted])
def test_pushed_functions_are_queued(push, kind):
    for _ in range(3):
        probe.returned.clear()
        handle = push()
        probe.returned.set()
        handle.wait()
    probe.check(3)


# -- code that runs on the caller's thread ---------------------------------------------------------------------


class Doubled(mx.autograd.Function):
    def forward(self, x):
        probe(wait=False)
        return x * 2

    def backward(self, dy):
        probe(wait=False)
        return dy * 2


def own_function():
    x = mx.nd.ones((1, 3))
    x.attach_grad()
    with mx.autograd.record():
        y = Doubled()(x)
    y.backward()
    return x.grad


def own_updater(kind):
    kv = mx.kv.create(kind)
    kv.init("a", mx.nd.zeros(3))

    def pull():
        kv.pull("a", out=mx.nd.zeros(3))
        pulled.set()

    def update(key, merged, stored):
        probe(wait=False)
        threading.Thread(target=pull, daemon=True).start()
        if not pulled.wait(TIMEOUT):
            probe.faults.append("another thread cannot use the store")
        stored[:] = merged

    pulled = threading.Event()

    kv.set_updater(update)
    kv.push("a", mx.nd.ones(3))
    out = mx.nd.zeros(3)
    kv.pull("a", out=out)
    return out + 1


class OwnOptimizer(mx.optimizer.Optimizer):
    def create_state(self, index, weight):
        probe(wait=False)
        return

    def update(self, index, weight, grad, state):
        probe(wait=False)
        weight[:] = 2


def own_optimizer(**how):
    net = mx.gluon.nn.Dense(1, in_units=3, use_bias=False)
    net.initialize(mx.init.Zero())
    trainer = mx.gluon.Trainer(net.collect_params(), OwnOptimizer(), **how)
    with mx.autograd.record():
        y = net(mx.nd.ones((1, 3)))
    y.backward()
    trainer.step(1)
    return net.weight.data()


def hooked():
    net = mx.gluon.nn.Dense(1, in_units=3, use_bias=False)
    net.initialize(mx.init.One())
    net.register_forward_hook(lambda *_: probe(wait=False))
    net.register_op_hook(lambda *_: probe(wait=False))
    return net(mx.nd.ones((1, 3))) - 1


def watched():
    exe = (mx.sym.var("data") * 2).bind(mx.cpu(), {"data": mx.nd.ones((1, 3))})
    exe.set_monitor_callback(lambda name, array: probe(wait=False))
    return exe.forward()[0].copy()


class OwnInitializer(mx.init.Initializer):
    def _init_weight(self, name, array):
        probe(wait=False)
        array[:] = 2


def initialized():
    net = mx.gluon.nn.Dense(1)
    net.initialize(OwnInitializer())
    net.hybridize()
    net(mx.nd.ones((1, 3)))
    return net.weight.data()


def applied():
    def function(row):
        probe(wait=False)
        return (mx.np.array(row) * 2).asnumpy()

    return mx.np.apply_along_axis(function, 1, mx.np.ones((1, 3))).as_nd_ndarray()


def in_pieces():
    def function(x):
        probe(wait=False)
        return x * 2

    x = mx.np.ones((1, 3))
    return mx.np.piecewise(x, [x > 0], [function]).as_nd_ndarray()


ON_THE_CALLER = {
    "autograd.Function": own_function,
    "updater": lambda: own_updater("local"),
    "updater of devices": lambda: own_updater("device"),
    "optimizer": own_optimizer,
    "optimizer on the store": lambda: own_optimizer(kvstore=mx.kv.create("local"), update_on_kvstore=True),
    "hooks": hooked,
    "monitor": watched,
    "initializer": initialized,
    "apply_along_axis": applied,
    "piecewise": in_pieces,
}


@pytest.mark.parametrize("entrance", ON_THE_CALLER)
@pytest.mark.parametrize("kind", [*KINDS, "NaiveEngine"])
def test_other_threads_use_the_engine_meanwhile(entrance, kind):
    with mx.engine.using(engine_type=kind):
        for _ in range(3):
            np.testing.assert_allclose(ON_THE_CALLER[entrance]().asnumpy().ravel(), 2)
        probe.check(3)


@pytest.mark.parametrize("entrance", [item for item in ENTRANCES if item != "simulated device"])
def test_the_naive_engine_is_not_locked_either(entrance, twice):
    probe.returned.set()
    with mx.engine.using(engine_type="NaiveEngine"):
        call = ENTRANCES[entrance](twice)
        for _ in range(3):
            np.testing.assert_allclose(call().asnumpy(), np.full((1, 3), 3.0))
    probe.check(3)


# -- what user code may raise ----------------------------------------------------------------------------------


class Ending(BaseException):
    """An exception that `except Exception` lets pass."""


ERRORS = [ValueError, StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Ending]


@pytest.mark.parametrize("entrance", [*ENTRANCES, "pushed", "pushed coroutine"])
def test_any_exception_reaches_the_wait_and_ends_nothing_else(entrance, twice):
    probe.returned.set()
    if entrance in ENTRANCES:
        call = ENTRANCES[entrance](twice)
    else:
        call = pushed if entrance == "pushed" else pushed_coroutine
    for error in ERRORS:
        probe.error = error("from user code")
        with pytest.raises((error, mx.MXNetError, RuntimeError)) as caught:  # coroutines cannot raise all of them
            waited(call())
        assert error.__name__ in repr(chain(caught.value)) or "cancelled" in str(caught.value)
        probe.error = None
        waited(call())
    assert (mx.nd.ones(3) * 2).asnumpy().tolist() == [2, 2, 2]
    assert mx.engine.push(lambda: 3).wait() == 3
    probe.check()


def waited(actual):
    return actual.wait() if isinstance(actual, mx.engine.Handle) else actual.asnumpy()


def chain(error):
    actual = []
    while error is not None:
        actual.append(error)
        error = error.__cause__ or error.__context__
    return actual


def test_one_array_or_variable_is_taken_as_a_list_of_it():
    array, variable = mx.nd.zeros((3, 2)), mx.engine.Variable()
    handle = mx.engine.push(lambda: 5, reads=array, writes=variable)
    assert handle.reads == (array.variable,) and handle.writes == (variable,) and handle.wait() == 5


def test_a_coroutine_function_that_was_not_called_is_refused():
    async def main():
        return 5

    with pytest.raises(TypeError, match=r"main is a coroutine function, expected a coroutine: write `run\(main\(\)\)`"):
        mx.run(main)
    assert mx.run(main()) == 5
