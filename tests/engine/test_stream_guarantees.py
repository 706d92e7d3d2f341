"""Guarantees on every device, whether its operations are complete when they return or when they are launched."""

import gc
import threading
import time

import numpy as np
import pytest

import flowmx as mx
from flowmx import devices
from flowmx.devices.sim import PRESETS, Description, simulated
from flowmx.devices.streams import HOST, Stream
from flowmx.engine.runtime import engine
from flowmx.errors import CrossDeviceWarning, OutOfMemory
from flowmx.observability.flight import watcher
from tests.device_bodies import *  # noqa: F403


@pytest.fixture
def opened():
    """The content of an array, inside a function that runs on its device."""
    return np.from_dlpack


@pytest.fixture(params=["cpu", "sim", "sim, adversarial timing"])
def places(request):
    """Two devices of a kind."""
    if request.param == "cpu":
        yield [mx.cpu(0), mx.cpu(1)]
    else:
        with simulated("a10", 2, streams=3, seed=None if request.param == "sim" else 1):
            yield [mx.sim(0), mx.sim(1)]
    engine.failures.clear()


# -- errors on the device ----------------------------------------------------------------------------------


def test_a_device_error_is_raised_by_the_operation_that_launched_it():
    with simulated("a10", 1, streams=2, seed=4):
        a = mx.nd.ones((4, 4), ctx=mx.sim(0))
        table = mx.nd.array([9], ctx=mx.sim(0))
        bad = mx.nd.take(a, table, mode="raise")
        later = bad * 2
        with pytest.raises(IndexError) as caught:
            later.asnumpy()
        notes = "\n".join(caught.value.__notes__)
        assert "'take'" in notes and "test_stream_guarantees.py" in notes
        assert "_mul_scalar" not in notes
        assert (a + 1).asnumpy().sum() == 32
    engine.failures.clear()


# -- memory ------------------------------------------------------------------------------------------------

SMALL = 1 << 20


def test_out_of_memory_names_the_largest_holders():
    with simulated("a10", memory=SMALL), mx.engine.using(engine_type="NaiveEngine"):
        arrays = [mx.nd.ones((256, 100), ctx=mx.sim(0)) for _ in range(6)]
        with mx.engine.layer_scope("encoder"):
            arrays.append(arrays[0] * 2)
        with pytest.raises(OutOfMemory, match="out of memory") as caught:
            [each * 2 for each in arrays][-1].wait_to_read()
        text = str(caught.value)
        assert "operation '_ones'" in text and "layer 'encoder'" in text and f"of {SMALL}" in text
        assert isinstance(caught.value, MemoryError)
        assert "102400 bytes were requested" in text
        arrays.clear()
        assert (mx.nd.ones((256, 100), ctx=mx.sim(0)) * 2).asnumpy().max() == 2
    engine.failures.clear()


def test_caches_are_freed_before_memory_is_out():
    with simulated("a10", memory=SMALL) as machine:
        for size in range(1, 60):
            x = mx.nd.ones((size * 1000,), ctx=mx.sim(0)) * 2
            assert x.asnumpy()[-1] == 2
            del x
        assert machine.statistics().peak_bytes["sim(0)"] <= 0.95 * SMALL


@pytest.fixture
def unwatched():
    """Prevent stack inspection: a frame under inspection keeps its arrays alive."""
    thread = watcher._watcher._thread
    watcher.stop()
    if thread is not None:
        thread.join()
    yield
    watcher.start()


@pytest.mark.parametrize("pool", ["Naive", "Round"])
def test_training_on_varying_shapes_peaks_near_the_largest(pool, monkeypatch, unwatched):
    monkeypatch.setenv("FLOWMX_GPU_MEM_POOL_TYPE", pool)
    mx.settings.reload()
    try:
        with simulated("a10") as machine, mx.engine.using(engine_type="NaiveEngine"):
            rng, largest = np.random.default_rng(0), 0
            for _ in range(100):
                n = int(rng.integers(1, 200_000))
                largest = max(largest, 3 * 4 * n)
                a = mx.nd.ones((n,), ctx=mx.sim(0))
                b = a * 2
                c = a + b
                del a, b, c
            device = devices.get(mx.sim(0))
            assert device.pool.peak <= (1.3 if pool == "Naive" else 2.0) * largest
            gc.collect()
            device.empty_cache()
            assert device.memory_info()[0] == device.pool.free_bytes()
            assert machine.statistics().holders["sim(0)"] == []
    finally:
        monkeypatch.undo()
        mx.settings.reload()


# -- virtual time ------------------------------------------------------------------------------------------

PLAIN = Description(
    name="plain", memory=1 << 30, flops={"float32": 1e9}, bandwidth=1e9, host_bandwidth=1e8, host_latency=0.0,
    peer_bandwidth=1e8, peer_latency=0.0, kernel_seconds=0.0, launch_seconds=1e-3, efficiency=1.0,
)  # fmt: skip


def product(n, ctx):
    return mx.nd.dot(mx.nd.ones((n, n), ctx=ctx), mx.nd.ones((n, n), ctx=ctx))


def test_simulated_time_follows_the_description():
    with simulated(PLAIN, 1, streams=1) as machine:
        a = mx.nd.ones((100, 100), ctx=mx.sim(0))
        mx.nd.waitall()
        before = machine.advance_clock()
        mx.nd.dot(a, a).wait_to_read()
        after = machine.advance_clock()
        # a launch, and two million operations at a thousand million a second
        assert after - before == pytest.approx(1e-3 + 2e-3)


def test_the_host_runs_ahead_until_it_waits():
    with simulated(PLAIN, 1, streams=1) as machine, mx.engine.using(engine_type="NaiveEngine"):
        for _ in range(5):
            product(200, mx.sim(0))
        ahead = machine.advance_clock()
        mx.nd.waitall()
        assert ahead == pytest.approx(15e-3)  # three launches each
        assert machine.advance_clock() >= 5 * 16e-3 + ahead / 15


def test_copies_overlap_with_computation():
    with simulated(PLAIN, 1, streams=1) as machine:
        batch = mx.nd.ones((500, 500), ctx=mx.cpu(0))
        x = mx.nd.ones((200, 200), ctx=mx.sim(0))
        for _ in range(5):
            x = mx.nd.dot(x, x) * 0.005
            batch.as_in_context(mx.sim(0))
        seconds = machine.statistics()
        copying = seconds.busy["sim(0) copies from the host 0"]
        computing = seconds.busy["sim(0) compute 0"]
        assert copying == pytest.approx(5 * 1e6 / 1e8)
        assert seconds.seconds < 1.1 * max(copying, computing) + 0.02 < copying + computing


def test_simulated_time_does_not_depend_on_thread_timing():
    def run():
        with simulated("gtx980", 2, streams=2) as machine:
            x = mx.nd.ones((64, 64), ctx=mx.sim(0))
            for step in range(12):
                y = mx.nd.dot(x, x).as_in_context(mx.sim(1))
                x = (y * 0.1).as_in_context(mx.sim(0)) + step
            x.wait_to_read()
            statistics = machine.statistics()
            return statistics.seconds, statistics.busy, statistics.timeline()

    first = run()
    for _ in range(3):
        again = run()
        assert again[0] == pytest.approx(first[0], rel=1e-12)
        assert again[1] == pytest.approx(first[1], rel=1e-12)
        assert again[2] == first[2]


def test_faster_devices_take_less_time():
    def seconds(name):
        with simulated(name) as machine:
            x = mx.nd.ones((400, 400), ctx=mx.sim(0))
            for _ in range(3):
                x = mx.nd.dot(x, x) * 0.0025
            x.wait_to_read()
            return machine.statistics().seconds

    assert seconds("h100") < seconds("a10") < seconds("gtx980") < seconds("gk104")
    assert set(PRESETS) == {"h100", "a10", "gtx980", "gk104"}


def test_an_unknown_device_is_refused():
    with pytest.raises(ValueError, match=r"gtx1080.*h100"), simulated("gtx1080"):
        pass


def test_a_simulated_device_is_there_without_preparation():
    a = mx.nd.ones((3, 3), ctx=mx.sim(7))
    with mx.sim(7):
        b = a + mx.nd.ones((3, 3))
    assert (b.asnumpy() == 2).all() and repr(b.context) == "sim(7)"


def test_devices_that_are_closed_leave_the_hosts_operations_alone():
    before = mx.engine.engine.watches.copy()
    with simulated("a10", 2):
        assert "tokens" in mx.engine.engine.watches
        a = mx.nd.ones((3, 3), ctx=mx.sim(0)).as_in_context(mx.cpu())
    assert mx.engine.engine.watches == before
    assert ((a + 1).asnumpy() == 2).all()


def test_memory_that_the_host_allocates_is_free_of_what_was_before():
    with simulated("a10", streams=2) as machine, mx.engine.using(engine_type="NaiveEngine"):
        for _ in range(4):
            mx.nd.ones((2, 2), ctx=mx.sim(0)).wait_to_read()
            a = mx.nd.empty((2, 2), ctx=mx.sim(0))
            assert (mx.nd.ones((2, 2), ctx=mx.sim(0), out=a).asnumpy() == 1).all()
        assert machine.devices[0].pool.allocations == 8


# -- data that crosses devices silently --------------------------------------------------------------------


def test_a_workspace_is_not_reused_before_its_launch_has_recorded_a_token():
    with simulated("gtx980") as machine:
        device = machine.devices[0]
        own, others = [], []

        def allocated():
            return device.allocate((5000,), np.float32).__array_interface__["data"][0]

        def elsewhere():
            with device.incoming.streams[0]:
                others.append(allocated())

        def launch():
            own.append(allocated())  # and freed while launched work may still use it
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()

        mx.engine.push(launch, writes=[mx.engine.Variable("any")], device=mx.sim(0))
        mx.nd.waitall()
        assert own != others


def test_a_line_that_moves_data_off_a_device_silently_is_warned_of_once():
    with simulated("a10", 2):
        here, there = mx.nd.ones((2, 3), ctx=mx.sim(0)), mx.nd.zeros((2, 3), ctx=mx.sim(1))
        with pytest.warns(
            CrossDeviceWarning, match=r"assignment copies from sim\(0\) to sim\(1\).*as_in_context"
        ) as caught_warnings:
            _ = [there.__setitem__(slice(None), here) for _ in range(3)]
        assert len(caught_warnings) == 1 and caught_warnings[0].filename == __file__
        with pytest.warns(CrossDeviceWarning, match=r"array\(\) copies from sim\(1\) to cpu\(0\)"):
            again = mx.nd.array(there, ctx=mx.sim(0))
        assert (again.asnumpy() == 1).all()


def test_intended_copies_across_devices_do_not_warn():
    with simulated("a10", 2):
        x = mx.nd.zeros((2, 3), ctx=mx.sim(0))
        x[:] = mx.nd.ones((2, 3))  # a batch comes from the host
        x[:] = x.as_in_context(mx.sim(1)).as_in_context(mx.sim(0))
        x.copyto(mx.nd.zeros((2, 3), ctx=mx.sim(1)))
        kv = mx.kv.create("local")
        kv.init(0, x)
        kv.pushpull(0, [x, x.as_in_context(mx.sim(1))], out=x)
        assert (x.asnumpy() == 2).all()


# -- several threads that launch ---------------------------------------------------------------------------


class Slow(Stream):
    """A stream that records the calls of its device and lets other threads run in between."""

    def __init__(self):
        super().__init__("slow", None)
        self.recorded, self.waiting, self.go_on = [], threading.Semaphore(0), threading.Event()

    def _wait(self, token):
        self.waiting.release()
        self.go_on.wait()
        self.recorded.append(token)

    def _record(self, token, launch):
        time.sleep(0)
        self.recorded.append(token.serial)

    def is_done(self, token):
        return True

    def finish(self, token):
        return None


def test_tokens_stand_in_the_order_of_their_numbers_whichever_thread_records_them():
    stream = Slow()
    threads = [threading.Thread(target=lambda: [stream.record() for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stream.recorded == list(range(1, 2001))


def test_a_thread_relies_on_no_wait_that_another_one_has_not_placed_yet():
    stream, token = Slow(), Slow().record()
    first = threading.Thread(target=stream.wait, args=(token,), daemon=True)
    second = threading.Thread(target=stream.wait, args=(token,), daemon=True)
    first.start()
    assert stream.waiting.acquire(timeout=20)
    second.start()
    assert stream.waiting.acquire(timeout=20)  # it places its own wait
    stream.go_on.set()
    first.join()
    second.join()
    stream.wait(token)
    assert stream.recorded == [token, token]


def test_reads_by_the_host_keep_one_token_of_each_stream():
    with simulated("a10", 1, streams=2):
        a = mx.nd.ones((2, 3), ctx=mx.sim(0))
        for _ in range(20):
            mx.engine.push(lambda: None, reads=[a], device=mx.cpu(0)).wait()
            (a * 2).wait_to_read()
        marks = a.storage.marks
        assert HOST in marks.reads
        assert len(marks.reads[HOST].sources) <= 2
