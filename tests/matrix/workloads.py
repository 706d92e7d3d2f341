"""Workloads: small computations in steps, which return what they have computed.

Each is a generator, which yields between its steps. It depends on no global state, so that its result is the same
whatever runs between its steps; it seeds a generator of random numbers within a step.
"""

import asyncio
import contextlib
import io
import json
import tempfile
import warnings
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import flowmx as mx
from flowmx.comm.metrics import Metrics
from tests.jobs import job

Steps = Generator[None, None, Any]
STEPS = 3
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
Y = np.array([0, 1, 1, 0], np.float32)


def dense(units=2, inputs=3, **options):
    """A layer whose parameters are the same each time."""
    layer = mx.gluon.nn.Dense(units, in_units=inputs, **options)
    layer.initialize(mx.init.One())
    layer.weight.set_data(mx.nd.array(np.linspace(-0.5, 0.5, units * inputs).reshape(units, inputs)))
    return layer


def trained(net, trainer, x=X, loss=lambda out: (out**2).sum()) -> Steps:
    """Train for some steps; returns the parameters."""
    for _ in range(STEPS):
        with mx.autograd.record():
            value = loss(net(mx.nd.array(x)))
        value.backward()
        trainer.step(len(x))
        yield
    return [each.data().asnumpy() for each in net.collect_params().values()]


def sgd(net, kvstore="local", **options):
    return mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, **options}, kvstore=kvstore)


# -- networks ------------------------------------------------------------------------------------------


def imperative() -> Steps:
    net = dense()
    return (yield from trained(net, sgd(net, momentum=0.9)))


def hybridized() -> Steps:
    net = dense()
    net.hybridize()
    return (yield from trained(net, sgd(net, momentum=0.9)))


def static() -> Steps:
    net = dense()
    net.hybridize(static_alloc=True, static_shape=True)
    return (yield from trained(net, sgd(net)))


def batch_norm() -> Steps:
    net = mx.gluon.nn.HybridSequential()
    net.add(dense(3), mx.gluon.nn.BatchNorm(scale=False, in_channels=3))
    net[1].initialize()
    net.hybridize()
    return (yield from trained(net, sgd(net, wd=0.1)))


def lengths() -> Steps:
    net = dense(flatten=False)
    net.hybridize()
    out = []
    for length in (2, 3, 5):
        out.append(net(mx.nd.ones((1, length, 3))).asnumpy())
        yield
    return out


def executor() -> Steps:
    x = mx.sym.var("x")
    gradient = mx.nd.zeros((2, 3))
    symbol = mx.sym.sum(mx.sym.FullyConnected(x, mx.sym.var("w"), num_hidden=2, no_bias=True) ** 2)
    bound = symbol.bind(mx.cpu(), {"x": mx.nd.array(X), "w": mx.nd.ones((2, 3))}, {"w": gradient})
    out = []
    for _ in range(STEPS):
        bound.forward(is_train=True)
        bound.backward()
        bound.arg_dict["w"][:] = bound.arg_dict["w"] - 0.1 * gradient
        out.append(bound.outputs[0].asnumpy())
        yield
    return out


def module() -> Steps:
    scores = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2)
    net = mx.sym.SoftmaxOutput(scores, mx.sym.var("softmax_label"))
    mod = mx.mod.Module(net)
    mod.bind([("data", X.shape)], [("softmax_label", Y.shape)])
    mod.init_params(mx.init.One())
    mod.init_optimizer(optimizer_params={"learning_rate": 0.1})
    for _ in range(STEPS):
        mod.forward_backward(mx.io.DataBatch([mx.nd.array(X)], [mx.nd.array(Y)]))
        mod.update()
        yield
    return [value.asnumpy() for _, value in sorted(mod.get_params()[0].items())]


def control_flow() -> Steps:
    class Loop(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.contrib.foreach(lambda row, state: (row + state, row * state), x, F.ones((3,)))[0]

    net = Loop()
    net.hybridize()
    x = mx.nd.array(X)
    x.attach_grad()
    for _ in range(STEPS):
        with mx.autograd.record():
            y = net(x)
        y.backward()
        yield
    assert x.grad is not None
    return [y.asnumpy(), x.grad.asnumpy()]


def recurrent() -> Steps:
    net = mx.gluon.rnn.LSTM(2, input_size=3)
    net.initialize(mx.init.Constant(0.1))
    net.hybridize()
    return (yield from trained(net, sgd(net), X.reshape(2, 2, 3)))


def quantized() -> Steps:
    net = mx.gluon.nn.HybridSequential()
    net.add(dense(4), dense(2, 4))
    net.hybridize()
    data = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(X), 4)
    small = mx.contrib.quantization.quantize_net_v2(
        net, quantize_mode="smart", calib_data=data, calib_mode="naive", data_shapes=[("data", (4, 3))]
    )
    yield
    return small(mx.nd.array(X)).asnumpy()


def mixed_precision() -> Steps:
    net = dense(dtype="bfloat16")
    net.hybridize()
    out = []
    for _ in range(STEPS):
        out.append(net(mx.nd.array(X).astype("bfloat16")).astype("float32").asnumpy())
        yield
    return out


def sparse() -> Steps:
    net = mx.gluon.nn.Embedding(5, 2, sparse_grad=True)
    net.initialize(mx.init.One())
    return (yield from trained(net, sgd(net), np.array([1, 3], np.float32)))


def numpy_arrays() -> Steps:
    out, x = [], mx.np.array(X)
    for _ in range(STEPS):
        x = mx.np.tanh(x @ mx.np.ones((3, 3))) + mx.np.sum(x, axis=0)
        out.append(x.asnumpy())
        yield
    return out


def random_numbers() -> Steps:
    out = []
    for seed in range(STEPS):
        mx.random.seed(seed)
        out.append(mx.nd.random.normal(shape=(3,)).asnumpy())
        yield
    return out


# -- user code -----------------------------------------------------------------------------------------


@mx.operator.register("matrix_square")
class _Property(mx.operator.CustomOpProp):
    def create_operator(self, *_):
        return _Square()


class _Square(mx.operator.CustomOp):
    """An operator that uses new arrays and threads, which deadlocks if the engine's lock is held."""

    def forward(self, is_train, req, in_data, out_data, aux):
        with ThreadPoolExecutor(1, "user code") as pool:
            (two,) = pool.map(lambda _: (mx.nd.ones((1,)) * 2).asscalar(), [0])
        self.assign(out_data[0], req[0], in_data[0] ** float(two))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], 2 * in_data[0] * out_grad[0])


class _Squared(mx.gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.layer = dense()

    def hybrid_forward(self, F, x):
        return F.Custom(self.layer(x), op_type="matrix_square") + 1


def custom_operator() -> Steps:
    net = _Squared()
    net.hybridize()
    return (yield from trained(net, sgd(net)))


class _Sign(mx.autograd.Function):
    def forward(self, x):
        return mx.nd.array(np.sign(x.asnumpy()))

    def backward(self, dy):
        return dy * 3


def function() -> Steps:
    x = mx.nd.array(X)
    x.attach_grad()
    for _ in range(STEPS):
        with mx.autograd.record():
            y = (_Sign()(x * 2) * x).sum()
        y.backward()
        yield
    assert x.grad is not None
    return x.grad.asnumpy()


def pushed() -> Steps:
    log, out = mx.engine.Variable("log"), []

    async def later(value):
        await asyncio.sleep(0)
        out.append(value)

    for value in range(STEPS):
        mx.engine.push(lambda value=value: out.append(value), writes=[log])
        last = mx.engine.push(partial(later, -value), writes=[log])
        yield
    last.wait()
    return out


# -- training ------------------------------------------------------------------------------------------


def schedule() -> Steps:
    net = dense()
    return (yield from trained(net, sgd(net, lr_scheduler=mx.lr_scheduler.FactorScheduler(1, 0.5))))


def distributed() -> Steps:
    with job(1, 1) as cluster:
        kv = cluster.store()
        with kv:
            net = dense()
            return (yield from trained(net, sgd(net, kv, momentum=0.9)))


def two_trainers() -> Steps:
    with job(1, 1) as cluster, cluster.store() as kv:
        one, other = dense(), dense(3)
        adam = mx.gluon.Trainer(other.collect_params(), "adam", {"learning_rate": 0.1}, kvstore=kv)
        steps = trained(one, sgd(one, kv)), trained(other, adam)
        results = yield from _in_turns(*steps)
    return results


def _in_turns(*steps: Steps) -> Steps:
    results, running = {}, dict(enumerate(steps))
    while running:
        for at, each in list(running.items()):
            try:
                next(each)
            except StopIteration as end:
                results[at] = end.value
                del running[at]
        yield
    return [value for at in sorted(results) for value in results[at]]


def checkpointed() -> Steps:
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):  # the second run resumes the first
            net = dense()
            trainer = sgd(net, momentum=0.9)
            run = mx.checkpoint.Run(folder, net=net, trainer=trainer, every=1)
            run.resume()
            for _ in range(run.epoch, run.epoch + 2):
                with mx.autograd.record():
                    loss = (net(mx.nd.array(X)) ** 2).sum()
                loss.backward()
                trainer.step(4)
                run.batch_end()
                run.epoch_end()
                yield
        return net.weight.data().asnumpy()


def saved() -> Steps:
    with tempfile.TemporaryDirectory() as folder:
        net, file = dense(), str(Path(folder) / "net.params")
        out = []
        for at in range(STEPS):
            net.weight.set_data(mx.nd.full((2, 3), at))
            net.save_parameters(file)
            yield
            again = dense()
            again.load_parameters(file)
            out.append(again.weight.data().asnumpy())
        return out


# -- data ----------------------------------------------------------------------------------------------


def loader() -> Steps:
    out = []
    batches: mx.gluon.data.DataLoader[mx.nd.NDArray] = mx.gluon.data.DataLoader(
        mx.gluon.data.ArrayDataset(X), 2, num_workers=2, thread_pool=True
    )
    for batch in batches:
        out.append(batch.asnumpy())
        yield
    return out


def iterator() -> Steps:
    out = []
    for batch in mx.io.PrefetchingIter(mx.io.NDArrayIter(X, Y, 2)):
        (data,) = batch.data or ()
        out.append(data.asnumpy())
        yield
    return out


def asynchronous_loader() -> Steps:
    """One wait for a batch is cancelled: it must lose none."""
    batches = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(X), 1)

    async def read():
        out, iterator = [], aiter(batches)
        task = asyncio.ensure_future(anext(iterator))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            out.append((await task).asnumpy())
        async for batch in iterator:
            out.append(batch.asnumpy())
        return out

    yield
    return _in_thread(read)


def records() -> Steps:
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        file = mx.recordio.MXIndexedRecordIO(f"{path}.idx", f"{path}.rec", "w")
        for at in range(4):
            stream = io.BytesIO()
            Image.fromarray(np.full((4, 4, 3), 40 * at, np.uint8)).save(stream, "png")
            file.write_idx(at, mx.recordio.pack(mx.recordio.IRHeader(0, float(at), at, 0), stream.getvalue()))
        file.close()
        out = []
        images = mx.io.ImageRecordIter(path_imgrec=f"{path}.rec", data_shape=(3, 4, 4), batch_size=2)
        for batch in images:
            out += [each.asnumpy() for each in (*(batch.data or ()), *(batch.label or ()))]
            yield
        return out


# -- services ------------------------------------------------------------------------------------------


def _in_thread(coroutine):
    """Run a coroutine on a new event loop in another thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine()).result()


def predictor() -> Steps:
    service = mx.serve.Predictor(dense(), (3,), max_batch=4, metrics=Metrics())

    async def ask():
        async with service:
            return await asyncio.gather(*(service(row) for row in X))

    out = []
    for _ in range(2):  # it starts again after it was closed
        out += _in_thread(ask)
        yield
    return out


def service() -> Steps:
    application = mx.serve.asgi(mx.serve.Predictor(dense(), (3,), max_batch=4, metrics=Metrics()))

    async def ask():
        sent, asked, done = [], asyncio.Queue(), asyncio.Queue()
        life = asyncio.ensure_future(application({"type": "lifespan"}, asked.get, done.put))
        await asked.put({"type": "lifespan.startup"})
        await done.get()
        events = asyncio.Queue()
        events.put_nowait({"type": "http.request", "body": json.dumps(X.tolist()).encode()})

        async def send(event):
            sent.append(event)

        headers = [(b"content-type", b"application/json")]
        await application({"type": "http", "method": "POST", "path": "/predict", "headers": headers}, events.get, send)
        await asked.put({"type": "lifespan.shutdown"})
        await done.get()
        await life
        return np.array(json.loads(sent[1]["body"])["outputs"])

    out = []
    for _ in range(2):
        with warnings.catch_warnings():
            out.append(_in_thread(ask))
        yield
    return out
