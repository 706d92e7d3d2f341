"""The longest gap of an event loop while a service or a training program runs on it, in milliseconds.

    python loop_gaps.py [asyncio | uvloop] [CASE ...]

A task sleeps for a millisecond at a time. It records how late it wakes and how much processor time this process used
meanwhile; the lesser of the two is the gap, which excludes delays by other programs. Each case is measured two or three
times, from a first call each time. The least of the longest gaps is printed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

import flowmx as mx
from flowmx.engine import new_event_loop
from flowmx.gluon import nn
from flowmx.gluon.model_zoo import vision
from flowmx.serve.replies import Reply
from flowmx.serve.service import Service

Gap = Callable[[], float]
Case = Callable[["Watch"], Awaitable[None]]
CASES: dict[str, Case] = {}
MB = 1 << 20


class Watch:
    """Records the longest gap of the loop while a block runs."""

    def __init__(self) -> None:
        self.longest = 0.0

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[None]:
        """Watch the running loop."""
        task = asyncio.ensure_future(self._tick())
        await asyncio.sleep(0.02)
        self.longest = 0.0
        try:
            yield
            await asyncio.sleep(0.003)
        finally:
            task.cancel()

    async def _tick(self) -> None:
        last = time.perf_counter(), time.process_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter(), time.process_time()
            self.longest = max(self.longest, min(one - other for one, other in zip(now, last, strict=True)) - 0.001)
            last = now


def case(function: Case) -> Case:
    """Register a case."""
    CASES[function.__name__] = function
    return function


def dense() -> Any:
    """A small network."""
    net = nn.HybridSequential()
    net.add(nn.Dense(64, activation="relu"), nn.Dense(10))
    net.initialize()
    return net


# -- first calls -------------------------------------------------------------------------------------------


@case
async def first_call_of_resnet(watch: Watch) -> None:
    """A hybridized ResNet-50 predicts for the first time."""
    net = vision.resnet50_v1()
    net.initialize()
    net.hybridize()
    x = mx.nd.ones((1, 3, 224, 224))
    await x
    async with watch():
        await net(x)


@case
async def first_training_step_of_resnet(watch: Watch) -> None:
    """A hybridized ResNet-18 is trained for the first time."""
    net = vision.resnet18_v1()
    net.initialize()
    net.hybridize()
    trainer = mx.gluon.Trainer(net.collect_params(), "adam")
    x = mx.nd.ones((2, 3, 64, 64))
    await x
    async with watch():
        with mx.autograd.record():
            loss = net(x).sum()
        loss.backward()
        trainer.step(2)
        await loss
        await mx.nd.waitall_async()


@case
async def first_imperative_training_step_of_resnet(watch: Watch) -> None:
    """The same without hybridize."""
    net = vision.resnet18_v1()
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
    x = mx.nd.ones((2, 3, 64, 64))
    await x
    async with watch():
        with mx.autograd.record():
            loss = net(x).sum()
        loss.backward()
        trainer.step(2)
        await mx.nd.waitall_async()


@case
async def binding_resnet(watch: Watch) -> None:
    """A symbol is bound for training and runs once."""
    symbol = vision.resnet50_v1()(mx.sym.var("data"))
    async with watch():
        executor = symbol.simple_bind(mx.cpu(), data=(2, 3, 64, 64))
        executor.forward(is_train=True)
        executor.backward(mx.nd.ones((2, 1000)))
        await mx.nd.waitall_async()


@case
async def predictor_of_resnet(watch: Watch) -> None:
    """A Predictor of a ResNet-18 is created, warms up, predicts and drains."""
    net = vision.resnet18_v1()
    net.initialize()
    async with watch(), mx.serve.Predictor(net, shape=(3, 64, 64), max_batch=4) as predictor:
        await predictor(np.ones((3, 64, 64), np.float32))


@case
async def swapping_a_predictor(watch: Watch) -> None:
    """The model of a Predictor is replaced."""
    nets = [vision.resnet18_v1() for _ in range(2)]
    for net in nets:
        net.initialize()
    async with mx.serve.Predictor(nets[0], shape=(3, 64, 64), max_batch=2) as predictor, watch():
        await predictor.swap(nets[1])


# -- bodies ------------------------------------------------------------------------------------------------


class Wide(mx.gluon.HybridBlock):
    """A block with outputs of 82 MB."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.broadcast_mul(x, F.ones((1, 1 << 20)))


@case
async def answers_of_82_mb(watch: Watch) -> None:
    """A Predictor returns 20 rows of 4 MB."""
    async with mx.serve.Predictor(Wide(), shape=(1,), max_batch=4, max_queue=64) as predictor:
        x = np.ones((20, 1), np.float32)
        async with watch():
            await predictor(x)


def over_http(form: str, rows: int = 20, accept: str = "") -> Case:
    """Return a case: a reply of ``rows`` rows of 4 MB over HTTP."""

    async def measure(watch: Watch) -> None:
        from aiohttp import web

        async with mx.serve.Predictor(Wide(), shape=(1,), max_batch=4, max_queue=64) as predictor:
            runner = web.AppRunner(mx.serve.app(predictor))
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            body = json.dumps([[1.0]] * rows)
            async with watch():
                await asyncio.to_thread(ask, port, body, form)
            await runner.cleanup()

    return measure


def ask(port: int, body: str, form: str) -> None:
    """Request a prediction from another process, which reads the reply."""
    import subprocess

    code = (
        "import sys, urllib.request as u;"
        "r = u.Request(sys.argv[1], sys.argv[2].encode(), {'Content-Type': 'application/json', 'Accept': sys.argv[3]});"
        "f = u.urlopen(r); n = 0\n"
        "while chunk := f.read(1 << 20): n += len(chunk)"
    )
    url = f"http://127.0.0.1:{port}/predict"
    subprocess.run([sys.executable, "-c", code, url, body, form], check=True)


CASES["http_npy_82_mb"] = over_http("application/x-npy")
CASES["http_msgpack_82_mb"] = over_http("application/msgpack")
CASES["http_json_1e6_floats"] = over_http("application/json", 1)


@case
async def reading_json_of_5e5_floats(watch: Watch) -> None:
    """A JSON body of half a million numbers."""
    await reading(watch, "application/json", json.dumps(np.random.default_rng(0).random(500_000).tolist()).encode())


@case
async def reading_msgpack_of_60_mb(watch: Watch) -> None:
    """A msgpack body of one large array."""
    import msgpack

    array = np.ones(15 * MB, np.float32)
    body = {"shape": list(array.shape), "dtype": "float32", "data": array.tobytes()}
    await reading(watch, "application/msgpack", msgpack.packb(body))


@case
async def reading_msgpack_of_5e5_floats(watch: Watch) -> None:
    """A msgpack body of half a million numbers."""
    import msgpack

    await reading(watch, "application/msgpack", msgpack.packb(np.random.default_rng(0).random(500_000).tolist()))


class First(mx.gluon.HybridBlock):
    """A block with large inputs and small outputs."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.slice_axis(x, axis=1, begin=0, end=1)


async def reading(watch: Watch, form: str, body: bytes) -> None:
    """Make a service read a body that arrives in chunks."""
    size = 15 * MB if len(body) > 50 * MB else 500_000
    async with mx.serve.Predictor(First(), shape=(size,), max_batch=1) as predictor:
        service = Service(predictor, max_text=1 << 30)
        headers = {"content-type": form, "accept": "application/json", "content-length": str(len(body))}

        async def chunks() -> AsyncIterator[bytes]:
            for start in range(0, len(body), 1 << 18):
                yield body[start : start + (1 << 18)]
                await asyncio.sleep(0)

        async with watch():
            pending: Any = service.begin("POST", "/predict", headers)
            assert not isinstance(pending, Reply), pending.body
            with service.budget.enter() as entry:
                inputs = await pending.receive(chunks(), entry)
            reply = await pending.reply(inputs)
        assert reply.status == 200, reply.body


# -- files -------------------------------------------------------------------------------------------------


def saved(folder: str, suffix: str, count: int, size: int) -> str:
    """Save ``count`` arrays of ``size`` floats, and return the path."""
    path = str(Path(folder) / f"w{suffix}")
    mx.nd.save(path, {f"w{number}": mx.nd.ones((size,)) for number in range(count)})
    return path


def loading(suffix: str, count: int) -> Case:
    """Return a case: a thread loads 500 MB while the loop predicts."""

    async def measure(watch: Watch) -> None:
        net = dense()
        net.hybridize()
        x = mx.nd.ones((4, 32))
        await net(x)
        with tempfile.TemporaryDirectory() as folder:
            path = saved(folder, suffix, count, 125_000_000 // count)
            async with watch():
                load = asyncio.ensure_future(asyncio.to_thread(mx.nd.load, path))
                while not load.done():
                    await net(x)
                    await asyncio.sleep(0)
                del load

    return measure


CASES["loading_500_mb_params_in_a_thread"] = loading(".params", 5)
CASES["loading_500_mb_in_one_array"] = loading(".params", 1)
CASES["loading_500_mb_safetensors"] = loading(".safetensors", 5)
CASES["loading_500_mb_npz"] = loading(".npz", 1)
CASES["loading_500_mb_pt"] = loading(".pt", 1)
CASES["loading_10000_arrays"] = loading(".params", 10_000)


def saving(suffix: str) -> Case:
    """Return a case: a thread saves 200 MB while the loop trains."""

    async def measure(watch: Watch) -> None:
        arrays = {f"w{number}": mx.nd.ones((5_000_000,)) for number in range(10)}
        await mx.nd.waitall_async()
        with tempfile.TemporaryDirectory() as folder:
            async with watch():
                await asyncio.to_thread(mx.nd.save, str(Path(folder) / f"w{suffix}"), arrays)

    return measure


CASES["saving_200_mb_in_a_thread"] = saving(".params")
CASES["saving_200_mb_safetensors"] = saving(".safetensors")
CASES["saving_200_mb_npz"] = saving(".npz")


@case
async def checkpoints(watch: Watch) -> None:
    """A Run saves a ResNet-50 with its optimizer, and resumes from the checkpoint."""
    net = vision.resnet50_v1()
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "adam")
    x = mx.nd.ones((1, 3, 64, 64))
    with mx.autograd.record():
        loss = net(x).sum()
    loss.backward()
    trainer.step(1)
    await mx.nd.waitall_async()
    with tempfile.TemporaryDirectory() as folder:
        async with watch():
            await mx.checkpoint.Run(folder, net=net, trainer=trainer).epoch_end_async()
            await mx.checkpoint.Run(folder, net=net, trainer=trainer).resume_async()


# -- other -------------------------------------------------------------------------------------------------


@case
async def starting_a_loader(watch: Watch) -> None:
    """A DataLoader with two workers starts and returns its batches."""
    data = mx.gluon.data.ArrayDataset(np.ones((512, 3, 32, 32), np.float32), np.ones(512, np.float32))
    loader = mx.gluon.data.DataLoader(data, 32, num_workers=2)
    async with watch():
        async for _ in loader:
            pass


@case
async def pushed_coroutines(watch: Watch) -> None:
    """A task pushes 10,000 coroutines, a hundred at a time, and waits for them."""
    variable = mx.engine.Variable("v")

    async def work() -> None:
        await asyncio.sleep(0)

    async with watch():
        for number in range(10_000):
            mx.engine.push(work, writes=[variable])
            if number % 100 == 99:
                await asyncio.sleep(0)
        await mx.nd.waitall_async()


@case
async def profiler_dump(watch: Watch) -> None:
    """The profile of 20,000 operations is written."""
    with tempfile.TemporaryDirectory() as folder:
        mx.profiler.set_config(filename=str(Path(folder) / "profile.json"), profile_all=True)
        mx.profiler.set_state("run")
        x = mx.nd.ones((4,))
        for _ in range(10_000):
            x = x + 1
        await x
        mx.profiler.set_state("stop")
        async with watch():
            await asyncio.to_thread(mx.profiler.dump)


@case
async def decoding_images(watch: Watch) -> None:
    """A thread decodes an image of 12 megapixels and resizes it."""
    import io

    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (3000, 4000, 3), np.uint8)).save(stream, "JPEG")

    def decode() -> Any:
        return mx.image.imresize(mx.image.imdecode(stream.getvalue()), 224, 224).asnumpy()

    async with watch():
        await asyncio.to_thread(decode)


@case
async def snapshots_of_the_flight_recorder(watch: Watch) -> None:
    """The doctor's snapshot, while 4,000 operations are pending."""
    from flowmx.observability.flight.snapshot import take

    gate = threading.Event()
    variable = mx.engine.Variable("v")
    mx.engine.push(gate.wait, writes=[variable])
    for _ in range(4000):
        mx.engine.push(int, writes=[variable])
    async with watch():
        await asyncio.to_thread(lambda: json.dumps(take()))
    gate.set()
    await mx.nd.waitall_async()


@case
async def large_arrays_from_numpy(watch: Watch) -> None:
    """An array of 200 MB is created from NumPy's and read back."""
    x = np.ones(50_000_000, np.float32)
    async with watch():
        y = await asyncio.to_thread(mx.nd.array, x)
        await y
        await asyncio.to_thread(y.asnumpy)


def main() -> None:
    kind, *names = sys.argv[1:] or ["asyncio"]
    for name, function in CASES.items():
        if names and name not in names:
            continue
        gap = math.inf
        for _ in range(3 if "resnet" not in name else 2):
            gc.collect()
            watch = Watch()
            with asyncio.Runner(loop_factory=lambda: new_event_loop(kind == "uvloop")) as runner:
                try:
                    runner.run(function(watch))
                except Exception as error:
                    print(name, "failed:", type(error).__name__, error, flush=True)
                    break
            gap = min(gap, watch.longest)
        else:
            print(f"{kind:8} {name:45} {gap * 1e3:8.1f} ms", flush=True)


if __name__ == "__main__":
    main()
