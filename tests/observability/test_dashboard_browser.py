"""The dashboard in a real Chromium: live updates during training, both themes, phones, and reported faults."""

import asyncio
import contextlib
import gc
import re
import threading
import time

import numpy as np
import pytest
import pytest_asyncio

import flowmx as mx
from flowmx.devices.sim import simulated
from flowmx.errors import KVStoreError
from flowmx.generation import Generator
from flowmx.observability import flight
from flowmx.observability.dashboard import sampler_thread
from flowmx.observability.flight import curves
from tests import browser as browsers
from tests.generation.test_generator import Scripted

pytestmark = [
    pytest.mark.skipif(browsers.path() is None, reason="no Chromium is installed (apt-get install chromium)"),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium():
    async with browsers.browser() as instance:
        yield instance


@pytest_asyncio.fixture(loop_scope="module")
async def look(chromium):
    """Return a function that opens pages, which are closed when the test ends."""
    async with contextlib.AsyncExitStack() as pages:
        yield lambda *where, **how: pages.enter_async_context(chromium.page(*where, **how))


@pytest.fixture
def dashboard(monkeypatch):
    monkeypatch.setattr(curves, "curves", {})
    with contextlib.suppress(Exception):  # forget failures of earlier tests
        mx.nd.waitall()
    with mx.dashboard.start() as instance:
        yield instance


@contextlib.contextmanager
def in_background(work, name="program"):
    """Run work repeatedly in a thread."""
    stopping = threading.Event()

    def run():
        while not stopping.is_set():
            work()

    thread = threading.Thread(target=run, name=name)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(20)


def trainer():
    """Return a function that trains for a few steps."""
    net = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=8, name="conv")
    net = mx.sym.FullyConnected(mx.sym.Flatten(mx.sym.Activation(net, act_type="relu")), num_hidden=10, name="dense")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
    random = np.random.RandomState(0)
    data = random.rand(320, 1, 20, 20).astype("float32")
    batches = mx.io.NDArrayIter(data, (data.mean((1, 2, 3)) * 1000 % 10).astype("float32"), 32)
    return lambda: mx.run(module.fit(batches, eval_data=batches, num_epoch=1, eval_metric=["acc", "ce"]))


NUMBER = "document.querySelectorAll('.tile .value')[{}].firstChild.textContent"
WIDE = "[document.documentElement.scrollWidth, innerWidth]"


async def test_a_training_is_live_on_a_desk_and_on_a_phone_in_light_and_dark(look, dashboard, monkeypatch):
    monkeypatch.setattr(sampler_thread, "INTERVAL", 0.15)
    with in_background(trainer()):
        page = await look(dashboard.url, 1280, 900, prefers_color_scheme="light")
        await page.until("document.getElementById('status').dataset.state === 'live'")
        await page.until("document.querySelectorAll('#curves figure').length === 3")
        assert await page.evaluate("document.getElementById('warnings-title').offsetWidth") > 0
        await page.until("document.querySelector('#holders tbody')?.innerText.includes('conv')")
        await page.until("document.querySelector('#layers tbody')?.innerText.includes('float32')")
        for index in (0, 1, 2):  # operations, steps, samples
            before = await page.evaluate(NUMBER.format(index))
            await page.until(f"{NUMBER.format(index)} !== {before!r}")
        await page.until("document.querySelector('#actors tbody').innerText.includes('cpu(0)')")
        label = "document.querySelector('#curves canvas').getAttribute('aria-label')"
        assert (await page.evaluate(label)).startswith("accuracy: ")
        light, _ = browsers.brightness(await page.picture(whole=False))
        await page.prefer(prefers_color_scheme="dark")
        await page.until("getComputedStyle(document.body).backgroundColor === 'rgb(14, 17, 22)'")
        dark, spread = browsers.brightness(await page.picture(whole=False))
        assert light > 200 and dark < 60 and spread > 15
        for width in (320, 390):
            await page.resize(width, 800, mobile=True)
            await page.until(f"innerWidth === {width}")
            assert await page.evaluate(WIDE) == [width, width]
        assert page.errors == []
        assert {each.split("/")[2] for each in page.requests} == {dashboard.url.split("/")[2]}


async def test_the_timeline_describes_a_bar_by_pointer_and_keyboard(look, dashboard):
    def work():
        mx.nd.dot(mx.nd.ones((400, 400)), mx.nd.ones((400, 400))).wait_to_read()

    with in_background(work):
        page = await look(dashboard.url)
        await page.until("document.getElementById('timeline-empty').hidden")
        await page.evaluate("document.getElementById('timeline').focus()")
        for kind in ("keyDown", "keyUp"):
            await page.call("Input.dispatchKeyEvent", type=kind, key="ArrowLeft", code="ArrowLeft")
        announcement = await page.until("document.getElementById('timeline-status').textContent")
        assert re.search(r".+, [\d.]+ (µs|ms|s) · cpu\(\d\) · \w+\.py:\d+", announcement)
        await page.evaluate("document.getElementById('pause').click()")
        assert await page.evaluate("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
        await page.until("document.getElementById('status-text').textContent === 'paused'")
        box = "document.getElementById('timeline').getBoundingClientRect()"
        middle = await page.evaluate(f"[{box}.left + {box}.width / 2, {box}.top + 10]")
        await page.call("Input.dispatchMouseEvent", type="mouseMoved", x=middle[0], y=middle[1])
        tip = await page.evaluate("document.getElementById('timeline-tip').textContent")
        assert "cpu(0)" in tip
        assert page.errors == []


async def test_a_theme_is_remembered(look, dashboard):
    page = await look(dashboard.url, prefers_color_scheme="light")
    await page.until("document.getElementById('status').dataset.state === 'live'")
    for expected in ("light", "dark"):
        await page.evaluate("document.getElementById('theme').click()")
        assert await page.evaluate("document.documentElement.dataset.theme") == expected
    await page.call("Page.reload")
    await page.until("document.documentElement.dataset.theme === 'dark'")
    await page.evaluate("document.getElementById('theme').click()")
    assert page.errors == []


async def test_processes_that_stop_and_restart_are_shown_so(look):
    first = mx.dashboard.start()
    page = await look(first.url)
    await page.until("document.getElementById('status').dataset.state === 'live'")
    await asyncio.to_thread(first.stop)
    await page.until("document.getElementById('status').dataset.state === 'gone'", 15)
    assert "it has exited" in await page.evaluate("document.getElementById('banner').textContent")
    port = int(first.url.rstrip("/").rpartition(":")[2])
    with mx.dashboard.start(port=port):
        await page.until("document.getElementById('status').dataset.state === 'live'", 15)
        assert await page.evaluate("document.getElementById('banner').hidden")


# -- faults ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def endless():
    gate = threading.Event()
    mx.engine.push(gate.wait, name="endless", device=mx.cpu(3))
    try:
        yield
    finally:
        gate.set()


@contextlib.contextmanager
def deadlocked():
    lock = threading.Lock()

    class Dead(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            with lock:
                self.assign(out_data[0], req[0], in_data[0])

    @mx.operator.register("dead_of_dashboard")
    class DeadProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):
            return Dead()

    lock.acquire()
    mx.nd.Custom(mx.nd.ones((2, 2), ctx=mx.cpu(4)), op_type="dead_of_dashboard")
    try:
        yield
    finally:
        lock.release()


class Slow:
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        threading.Event().wait(0.01)
        return np.zeros(3, "float32")


def starved():
    batches = iter(mx.gluon.data.DataLoader(Slow(), batch_size=4))
    return in_background(lambda: next(batches).sum().wait_to_read(), "reader")


def not_a_number():
    x = mx.nd.array([-1.0] * 100)
    return in_background(lambda: (x.log().wait_to_read(), time.sleep(0.002)), "numbers")


def leaking():
    arrays = []
    return in_background(lambda: (arrays.append(mx.nd.ones((64, 64)) * 2), time.sleep(0.01)), "keeper")


@contextlib.contextmanager
def crossing():
    with simulated("a10"):
        host, x = mx.nd.ones((8, 8)), mx.nd.ones((8, 8), ctx=mx.sim(0))

        def work():
            x[:] = host
            x.wait_to_read()
            time.sleep(0.005)

        with in_background(work, "crosser"):
            yield


@contextlib.contextmanager
def blocked():
    ended = threading.Event()

    async def service():
        await mx.engine.push(lambda: None, device=mx.cpu())
        while not ended.is_set():
            time.sleep(0.5)
            await asyncio.sleep(0)

    thread = threading.Thread(target=lambda: mx.run(service()), name="service")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def overloaded():
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="dense")
    params = {"dense_weight": mx.nd.ones((4, 5)), "dense_bias": mx.nd.zeros((4,))}
    predictor = mx.serve.Predictor(data, (5,), params=params, max_batch=1, max_queue=1)

    async def flood():
        await asyncio.gather(*(predictor(np.zeros(5, "float32")) for _ in range(40)), return_exceptions=True)

    return in_background(lambda: (mx.run(flood()), time.sleep(0.05)), "clients")


@contextlib.contextmanager
def add_report(**words):
    flight.describe("kvstore", lambda: words)
    try:
        yield
    finally:
        flight.forget("kvstore")


def lost():
    why = "server 0 is gone: silent for 10 s"
    return add_report(node="worker 0", peers=[{"name": "server 0", "state": "gone", "why": why}])


@contextlib.contextmanager
def mismatched():
    def refused():
        raise KVStoreError("the nodes of the job differ: worker 1 has version 2, and server 0 has 1")

    x = mx.nd.ones((2,))
    mx.engine.push(refused, writes=[x])
    try:
        yield
    finally:
        with contextlib.suppress(KVStoreError):
            x.wait_to_read()


FAULTS = {
    "device crossing": crossing, "an operation that does not end": endless, "deadlocked Custom operator": deadlocked,
    "starved loader": starved, "NaN": not_a_number, "leak": leaking, "blocked event loop": blocked,
    "overloaded server": overloaded, "lost peer": lost, "version mismatch": mismatched,
}  # fmt: skip


async def test_the_panel_of_text_generation_appears_with_a_generator(look, dashboard):
    panel = "document.getElementById('generation')"
    page = await look(dashboard.url)
    await page.until("document.getElementById('status').dataset.state === 'live'")
    assert await page.evaluate(f"{panel}.hidden")
    async with Generator(Scripted(pages=30), name="tiny") as generator:
        await generator([1], temperature=0, max_tokens=9)
        await page.until(f"!{panel}.hidden && {panel}.querySelector('tbody').textContent.includes('tiny')")
        assert "of 30" in await page.evaluate(f"{panel}.querySelector('tbody').textContent")
    del generator
    gc.collect()
    await page.until(f"{panel}.hidden")


async def test_ten_planted_faults_are_named_within_ten_seconds(look, dashboard):
    page = await look(dashboard.url)
    await page.until("document.getElementById('status').dataset.state === 'live'")
    planted = contextlib.ExitStack()
    try:
        for plant in FAULTS.values():
            planted.enter_context(plant())
        end = time.monotonic() + 10
        for kind in FAULTS:
            named = f"[...document.querySelectorAll('.finding')].some((each) => each.innerText.includes({kind!r}))"
            await page.until(named, end - time.monotonic())
        advice = await page.evaluate("document.getElementById('findings').innerText")
    finally:
        await asyncio.to_thread(planted.close)  # it waits for operations and threads
    assert "Advice: " in advice
    assert page.errors == []
