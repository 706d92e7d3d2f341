"""GPUs on a stand-in for CuPy (tests/cupy_stand_in), whose work may run late and in any permitted order."""

import contextlib
import gc
import logging
import os
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import flowmx as mx
from flowmx import devices
from flowmx.devices import Context, block_pool, cuda
from flowmx.devices.cuda import copies, driver, library, staging
from flowmx.devices.cuda import memory as lease_memory
from flowmx.devices.cuda.stream import CudaStream
from flowmx.devices.streams import HOST, current_stream
from flowmx.engine.runtime import engine
from flowmx.errors import DeviceError, OutOfMemory
from flowmx.ops.registry.operators import Run
from tests.cupy_stand_in.standing import standing
from tests.device_bodies import *  # noqa: F403
from tests.engine.test_serial_equivalence import check, explain
from tests.gpu_programs import flow_on
from tests.programs import Serial, make

pytestmark = pytest.mark.filterwarnings("ignore::flowmx.errors.CrossDeviceWarning")
CONTEXTS = [mx.gpu(0), mx.gpu(1)]


@pytest.fixture(autouse=True, scope="module")
def quick_collections():
    """Freeze the objects of pytest and its plugins, so that the collections of a device without memory are fast."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(params=["at launch", "adversarial timing"])
def places(request):
    """Two GPUs."""
    with standing(2, streams=3, seed=None if request.param == "at launch" else 1):
        yield CONTEXTS


@pytest.fixture
def opened():
    return lambda array: array.raw()


# -- random programs ---------------------------------------------------------------------------------------

LITTLE = 1 << 22
"""Bytes that are enough for the largest programs, but no more: blocks go from stream to stream."""


def run(gpus, program, seed):
    gpus.machine.restart(seed)
    with mx.engine.using(engine_type="NaiveEngine" if program.seed % 3 == 0 else "ThreadedEnginePerDevice"):
        outcomes = flow_on(gpus.cp)(program, CONTEXTS).run()
        engine.wait_all(throw=False)
    return outcomes


@pytest.mark.parametrize("count", [40, pytest.param(3000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
@pytest.mark.parametrize("pool", ["Naive", "Round", "Unpooled"])
def test_a_random_program_equals_a_serial_run(pool, count):
    with mx.settings.override(gpu_mem_pool_type=pool), standing(2, LITTLE, seed=0, streams=3) as gpus:
        gpus.machine.null_allowed = True  # the user's coroutines run on the loop's thread
        for seed in range(count):
            program = make(seed, length=30)
            check(program, run(gpus, program, seed if seed % 4 else None))


class Gone(Exception):
    """The error of a driver."""


@pytest.mark.parametrize("fails", [False, True])
def test_a_stream_waits_for_an_event_of_its_kind_and_the_thread_for_what_has_none(fails):
    def wait_event(event):
        did.append(("event", event))
        if fails:
            raise Gone

    def lose(error, stream, op):
        did.append(("lost", type(error), stream, op))

    did, other, stream = [], object(), object.__new__(CudaStream)
    stream.raw = SimpleNamespace(wait_event=wait_event)
    stream.device = SimpleNamespace(errors=Gone)
    earlier = object.__new__(CudaStream)
    earlier.device = SimpleNamespace(lose=lose)

    def wait(at, event=None):
        did.clear()
        stream._wait(SimpleNamespace(stream=at, event=event, finish=lambda: did.append("finished")))
        return did

    assert wait(other) == ["finished"]
    assert wait(HOST) == []
    assert wait(earlier) == [], "its work is done"
    lost = [("lost", Gone, earlier, None)] if fails else []
    assert wait(earlier, "event") == [("event", "event"), *lost]


# -- devices that forget -------------------------------------------------------------------------------------


def no_wait(self, token):
    """A stream that forgets to wait for others."""


def no_uses(self, block, stream):
    """A faulty pool that hands out memory that is still in use."""


def give_at_once(self, block, token):
    """Pinned memory that is used again before its copy is done."""
    with self._lock:
        self._blocks[block.size].append((block, Done()))


class Done:
    def done(self):
        return True

    def finish(self):
        return None


def handed_on(seed):
    """Sum arrays that share two blocks of memory, on alternating streams; return the number of wrong sums."""
    with standing(1, 1 << 16, seed=seed, streams=3), mx.engine.using(engine_type="NaiveEngine"):
        sums = []
        for value in range(10):
            array = mx.nd.full((64, 64), value, ctx=mx.gpu(0))
            sums.append(array.sum())
            del array
        return sum(result.asscalar() != 64 * 64 * value for value, result in enumerate(sums))


def crossed(seed):
    """Copy values over streams, devices and the host; return the number of wrong ones."""
    with standing(2, seed=seed, streams=3):
        pairs = []
        for value in range(8):
            a = mx.nd.array(np.full((40, 50), value), ctx=mx.gpu(0))
            b = (a * 2).as_in_context(mx.gpu(1)) + 1
            pairs.append((b.as_in_context(mx.cpu(0)), 2 * value + 1))
        return sum(int((array.asnumpy() != value).any()) for array, value in pairs)


FORGETS = {
    "a stream forgets to wait": (CudaStream, "wait", no_wait, crossed),
    "a pool forgets tokens": (block_pool.BlockPool, "wait_for_uses", no_uses, handed_on),
    "pinned memory is given away": (staging.Staging, "give", give_at_once, crossed),
}


@pytest.mark.parametrize("wrong", FORGETS)
def test_the_stand_in_finds_a_device_that_forgets(wrong, monkeypatch):
    owner, name, forgetful, body = FORGETS[wrong]
    assert not any(body(seed) for seed in range(6))
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, forgetful)
        assert any(body(seed) for seed in range(12))


def until(pool, condition):
    """Collect until a condition of a pool holds: a worker may still hold the operation it has just run."""
    while not condition():
        gc.collect()
        pool.free_bytes()


# -- memory ------------------------------------------------------------------------------------------------


def test_temporaries_of_cupy_come_from_the_pool():
    with standing(1, seed=3) as gpus:
        pool = gpus.devices[0].pool
        a = mx.nd.ones((100, 100), ctx=mx.gpu(0))
        a.wait_to_read()
        before = pool.allocations
        mx.engine.push(lambda: a.raw() + 1 + 1, reads=[a], device=mx.gpu(0)).wait()
        assert pool.allocations == before + 2


def test_a_device_that_others_use_too_runs_out_and_names_the_holders():
    with standing(1, 1 << 20) as gpus, mx.engine.using(engine_type="NaiveEngine"):
        gpus.machine.used[0] = 1 << 18  # another process
        with mx.engine.layer_scope("encoder"):
            arrays = [mx.nd.ones((256, 100), ctx=mx.gpu(0)) for _ in range(5)]
        arrays += [arrays[0] * 2 for _ in range(5)]
        with pytest.raises(OutOfMemory, match="out of memory") as caught:
            arrays[-1].wait_to_read()
        assert "layer 'encoder'" in str(caught.value)
        free, total = mx.gpu_memory_info(0)
        assert total == 1 << 20 and free <= total - (1 << 18)
        arrays.clear()
        engine.failures.clear()
        assert (mx.nd.ones((256, 100), ctx=mx.gpu(0)) * 2).asnumpy().max() == 2


def test_temporaries_are_used_again_though_other_streams_are_busy():
    def launch(blocks):
        blocks.append(lease_memory.block_of(gpus.cp.ndarray((300,), np.float32)))

    with standing(1, streams=2, seed=1) as gpus, mx.engine.using(engine_type="NaiveEngine"):
        arrays = [mx.nd.ones((3,), ctx=mx.gpu(0)) for _ in range(2)]
        mx.nd.waitall()
        first, second = [], []
        for blocks in (first, second):
            for array in arrays:
                mx.engine.push(lambda blocks=blocks: launch(blocks), writes=[array], device=mx.gpu(0))
        mx.nd.waitall()
        for block in first:
            assert len(block.uses) <= 2 and not any("copies" in stream.name for stream in block.uses)


def test_memory_freed_during_a_launch_is_not_reused_before_its_end():
    addresses = {}

    def launch(device):
        memory = device.memory(5000)
        addresses["mine"] = memory.ptr
        del memory
        other = threading.Thread(target=lambda: addresses.update(others=device.pool.acquire(5000, None).address))
        other.start()
        other.join()
        addresses["again"] = device.memory(5000).ptr

    with standing(1) as gpus:
        a = mx.nd.ones((3,), ctx=mx.gpu(0))
        mx.engine.push(lambda: launch(gpus.devices[0]), writes=[a], device=mx.gpu(0)).wait()
        assert addresses["others"] != addresses["mine"] == addresses["again"]


def test_memory_of_a_freed_graph_is_released_after_its_last_run():
    with standing(1, 1 << 20, seed=1, streams=3) as gpus, mx.engine.using(engine_type="NaiveEngine"):
        device = gpus.devices[0]
        x = mx.sym.Variable("x")
        net = mx.sym.softmax(mx.sym.dot(mx.sym.softmax(x), mx.sym.softmax(x)) * 3)
        bound = net.bind(mx.gpu(0), {"x": mx.nd.full((40, 40), 2, ctx=mx.gpu(0))})
        for _ in range(3):
            bound.forward()
        memory = bound.arena._blocks[device].memory
        block, last = lease_memory.block_of(memory), bound.outputs[0].storage.marks.write
        assert not last.done()
        del bound, memory
        until(device.pool, lambda: id(block) not in device.pool._leased)
        assert block.uses[last.stream].serial >= last.serial
        other = next(stream for stream in device.compute.streams if stream is not last.stream)
        assert device.pool.acquire(block.size, other) is not block


def test_caches_go_back_to_cuda():
    with standing(1) as gpus:
        a = mx.nd.ones((1000, 1000), ctx=mx.gpu(0))
        a.wait_to_read()
        del a
        until(gpus.devices[0].pool, lambda: not gpus.devices[0].pool.used)
        mx.gpu(0).empty_cache()
        assert gpus.machine.used[0] == 0


class Refuses:
    """A fault that refuses one allocation, counted over all devices."""

    def __init__(self, gpus, number):
        self.left = number
        for device in gpus.devices:
            device.pool.on_allocate = self

    def __call__(self, nbytes):
        self.left -= 1
        if self.left == 0:
            raise OutOfMemory(f"refused: {nbytes} bytes")


def agrees(expected, outcomes):
    return expected == outcomes or (outcomes[0] == "error" and issubclass(outcomes[1], OutOfMemory))


@pytest.mark.parametrize("count", [3, pytest.param(40, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_out_of_memory_at_every_allocation_in_turn(count):
    refused = 0
    with standing(2, streams=3) as gpus:
        gpus.machine.null_allowed = True
        for seed in range(count):
            program = make(seed, length=15)
            expected = Serial(program).run()
            for number in range(1, 1000):
                gpus.machine.restart(seed)
                refuses = Refuses(gpus, number)
                with mx.engine.using(engine_type="NaiveEngine"):
                    outcomes = flow_on(gpus.cp)(program, CONTEXTS).run()
                    engine.wait_all(throw=False)
                if refuses.left > 0:
                    assert outcomes == expected
                    break
                assert all(map(agrees, expected, outcomes)), explain(program, expected, outcomes)
                refused += any(OutOfMemory in outcome for outcome in outcomes)
    assert refused > 3 * count, "allocations must have been refused, and somebody have seen it"


# -- errors on the device ----------------------------------------------------------------------------------


def break_down(gpus, array):
    mx.engine.push(gpus.machine.break_down, writes=[array], device=array.context, name="breaking")


@pytest.mark.parametrize("seed", [None, *range(6)])
def test_a_device_error_is_raised_by_the_launched_operation(seed):
    with standing(2, seed=seed) as gpus:
        there = mx.nd.ones((3, 3), ctx=mx.gpu(1))
        a = mx.nd.ones((3, 3), ctx=mx.gpu(0))
        a.wait_to_read()
        break_down(gpus, a)
        later = (a * 2).as_in_context(mx.cpu(0))
        with pytest.raises(
            DeviceError, match=r"(?s)gpu\(0\) failed.*illegal memory access.*CUDA_LAUNCH_BLOCKING"
        ) as caught:
            later.asnumpy()
        assert "test_cuda_device.py" in "\n".join(caught.value.__notes__)
        with pytest.raises(DeviceError, match=r"gpu\(0\) failed"):
            mx.nd.ones((2, 2), ctx=mx.gpu(0)).asnumpy()
        with pytest.raises(DeviceError, match=r"gpu\(0\) failed"):
            a.as_in_context(mx.gpu(1)).asnumpy()
        assert ((there + 1).asnumpy() == 2).all()
        assert (mx.nd.ones(3) + 1).asnumpy().sum() == 6
        engine.failures.clear()


def test_a_wait_for_all_tells_of_an_error_of_the_device():
    with standing(1, seed=2) as gpus:
        a = mx.nd.ones((3, 3), ctx=mx.gpu(0))
        break_down(gpus, a)
        with pytest.raises(DeviceError, match="breaking"):
            mx.nd.waitall()
        engine.failures.clear()


# -- streams -----------------------------------------------------------------------------------------------


def test_events_are_used_again():
    with standing(1, seed=5, streams=1) as gpus:
        a = mx.nd.ones((3,), ctx=mx.gpu(0))
        for _ in range(500):
            a += 1
        assert a.asnumpy().max() == 501
        stream = gpus.devices[0].compute.streams[0]
        assert 0 < len(stream._free_events) <= 500 and not stream._open


def test_tokens_of_a_program_that_never_waits_are_released():
    with standing(1, streams=1) as gpus:
        a = mx.nd.ones((3,), ctx=mx.gpu(0))
        with mx.engine.using(engine_type="NaiveEngine"):
            for _ in range(1000):
                a += 1
            assert len(gpus.devices[0].compute.streams[0]._open) < 200


def test_urgent_operations_have_a_stream_that_the_device_prefers():
    with standing(1) as gpus:
        assert gpus.devices[0].compute.urgent.raw.priority < 0
        a = mx.nd.ones((3,), ctx=mx.gpu(0))
        mx.engine.push(lambda: a.raw().fill(7), writes=[a], device=mx.gpu(0), priority=5)
        assert a.asnumpy().max() == 7


def test_the_streams_of_the_users_thread_stay_as_they_were():
    with standing(2) as gpus, mx.engine.using(engine_type="NaiveEngine"):
        cuda_of = gpus.cp.cuda
        cuda_of.runtime.setDevice(1)
        ours = cuda_of.Stream(non_blocking=True)
        ours.use()
        a = mx.nd.ones((3,), ctx=mx.gpu(0)) + 1
        assert a.as_in_context(mx.gpu(1)).asnumpy().sum() == 6
        assert cuda_of.runtime.getDevice() == 1 and cuda_of.get_current_stream() is ours
        cuda_of.runtime.setDevice(0)


def test_peers_are_reached_directly_unless_a_setting_forbids_it():
    for allowed in (True, False):
        with mx.settings.override(enable_gpu_p2p=allowed), standing(2) as gpus:
            a = mx.nd.ones((3, 4), ctx=mx.gpu(0))
            assert a.as_in_context(mx.gpu(1)).asnumpy().sum() == 12
            assert gpus.machine.peers == ({(1, 0)} if allowed else set())


# -- captured graphs ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def graphs(seed=None, memory=1 << 28):
    with mx.settings.override(cuda_graphs=True), standing(1, memory, seed=seed, streams=2) as gpus:
        yield gpus, gpus.devices[0].graphs


def network():
    x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=5, name="a")
    x = mx.sym.Activation(x, act_type="tanh")
    return mx.sym.FullyConnected(x, num_hidden=3, name="b")


def trained(context, steps=6):
    """Outputs and gradients of some steps of a bound network, with arguments that change."""
    rng = np.random.default_rng(0)
    bound = network().simple_bind(context, data=(4, 6), grad_req="write")
    for array in bound.arg_arrays:
        array[:] = rng.standard_normal(array.shape)
    results = []
    for _ in range(steps):
        bound.forward(is_train=True, data=mx.nd.array(rng.standard_normal((4, 6)), ctx=context))
        bound.backward(mx.nd.ones((4, 3), ctx=context))
        for name, gradient in bound.grad_dict.items():
            bound.arg_dict[name] -= 0.1 * gradient
        results += [bound.outputs[0].asnumpy(), bound.grad_dict["a_weight"].asnumpy()]
    return results


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_a_bound_graph_is_captured_and_replayed(seed):
    expected = trained(mx.cpu(0))
    with graphs(seed) as (_, counted):
        results = trained(mx.gpu(0))
        assert counted.captures >= 2 and counted.replays >= 2 * 4 and not counted.refused
    for one, other in zip(expected, results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_user_code_launches_on_a_stream_that_is_never_captured():
    with graphs() as (gpus, counted):
        trained(mx.gpu(0), steps=2)
        streams, captured = [], set(gpus.devices[0].compute.streams)
        array = mx.nd.zeros((4,), ctx=mx.gpu(0))

        def user_code():
            streams.append(current_stream())
            array[:] = 7

        mx.engine.push(user_code, writes=[array], device=mx.gpu(0)).wait()
        assert (array.asnumpy() == 7).all() and counted.captures
        assert streams == [gpus.devices[0].compute.user] and not captured & set(streams)


IMAGE_OPERATORS = {
    "flip": lambda x: mx.sym.image.random_flip_left_right(x),
    "brightness": lambda x: mx.sym.image.random_brightness(x, min_factor=0.1, max_factor=9.0),
    "color jitter": lambda x: mx.sym.image.random_color_jitter(x, 0.5, 0.5, 0.5, 0.5),
}


@pytest.mark.parametrize("name", IMAGE_OPERATORS)
def test_numbers_that_are_drawn_on_the_host_are_new_in_each_run(name):
    with graphs() as (_, counted):
        mx.random.seed(1)
        data = mx.nd.array(np.arange(60).reshape(4, 5, 3), ctx=mx.gpu(0))
        bound = IMAGE_OPERATORS[name](mx.sym.var("x") * 2).bind(mx.gpu(0), {"x": data})
        results = {bound.forward(is_train=True)[0].asnumpy().tobytes() for _ in range(30)}
        assert len(results) == (2 if name == "flip" else 30)
        assert counted.replays > 20  # the other steps


def hybrid(context, steps=8):
    mx.random.seed(3)
    rng = np.random.default_rng(0)
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(6, in_units=5, activation="tanh"), mx.gluon.nn.Dense(2, in_units=6))
    net.initialize(mx.init.Xavier(), ctx=mx.cpu(0))
    net.collect_params().reset_ctx(context)
    net.hybridize(static_alloc=True)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    losses = []
    for _ in range(steps):
        x = mx.nd.array(rng.standard_normal((4, 5)), ctx=context)
        with mx.autograd.record():
            loss = (net(x) ** 2).sum()
        loss.backward()
        trainer.step(4)
        losses.append(loss.asscalar())
    return losses


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_hybridized_block_is_captured_though_its_results_move(seed):
    expected = hybrid(mx.cpu(0), 30)
    with graphs(seed) as (_, counted):
        results = hybrid(mx.gpu(0), 30)
        assert counted.captures and counted.replays and not counted.refused
    np.testing.assert_allclose(results, expected, rtol=1e-4)


def test_memory_of_a_graph_is_not_shared():
    with graphs() as (gpus, counted):
        a = mx.sym.Variable("a")
        bound = (mx.sym.softmax(a * 2) + mx.sym.softmax(a)).bind(mx.gpu(0), {"a": mx.nd.ones((50, 50), ctx=mx.gpu(0))})
        for step in range(6):
            bound.arg_dict["a"][:] = mx.nd.array(np.random.default_rng(step).random((50, 50)), ctx=mx.gpu(0))
            bound.forward()
            others = [mx.nd.full((50, 50), value, ctx=mx.gpu(0)) for value in range(20)]
            want = (mx.nd.softmax(bound.arg_dict["a"] * 2) + mx.nd.softmax(bound.arg_dict["a"])).asnumpy()
            np.testing.assert_allclose(bound.outputs[0].asnumpy(), want, rtol=1e-5)
            assert [each.asnumpy().max() for each in others] == list(range(20))
        assert counted.replays == 4 + 1
        used = gpus.devices[0].pool.used
        del bound, others, want
        until(gpus.devices[0].pool, lambda: gpus.devices[0].pool.used < used)


class Reading(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * float(in_data[0].asnumpy().max()))


@mx.operator.register("reading_for_graphs")
class ReadingProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Reading()


def test_the_users_code_is_never_captured():
    with graphs() as (_, counted):
        bound = mx.sym.Custom(mx.sym.Variable("a"), op_type="reading_for_graphs").bind(
            mx.gpu(0), {"a": mx.nd.array([1, 2, 3], ctx=mx.gpu(0))}
        )
        for value in (1, 2, 3, 4):
            bound.arg_dict["a"][:] = value
            bound.forward()
            assert bound.outputs[0].asnumpy().max() == value * value
        assert counted.captures == counted.refused == 0


def test_steps_that_copy_from_the_host_or_wait_run_one_by_one(caplog):
    caplog.set_level(logging.INFO, "flowmx.cuda")

    def steps_of(function):
        class Step:
            op = None

        return [(function, [source.raw()], [target.raw()], Step)]

    with graphs() as (gpus, counted):
        cp = gpus.cp
        source, target = (mx.nd.ones((3,), ctx=mx.gpu(0)) for _ in range(2))
        mx.nd.waitall()

        def uploads(run, inputs, outputs):
            outputs[0][...] = inputs[0] * cp.asarray(np.arange(3.0, dtype=np.float32))

        def waits(run, inputs, outputs):
            outputs[0][...] = inputs[0] * float(inputs[0][0])

        def launches(run, inputs, outputs):
            outputs[0][...] = inputs[0] * 3 + inputs[0] * 4

        for function, captured, value in ((uploads, 0, 2), (waits, 0, 1), (launches, 1, 7)):
            steps = steps_of(function)
            run = Run(gpus.devices[0], False, {})
            before = counted.captures
            for _ in range(4):
                mx.engine.push(
                    lambda steps=steps, run=run: mx.graph.running.steps.run_steps(run, steps, "a test", capture=True),
                    reads=[source], writes=[target], device=mx.gpu(0),
                ).wait()  # fmt: skip
                assert target.asnumpy()[-1] == value
            assert counted.captures - before == captured
        assert counted.refused == 2
        assert "copy from the host" in caplog.text and "not permitted when stream is capturing" in caplog.text


@pytest.mark.parametrize("bad", ["uploads", "waits"])
def test_steps_around_one_that_cannot_be_captured_are_captured(bad):
    class Node:
        op = None

    with graphs(seed=1) as (gpus, counted):
        cp = gpus.cp
        arrays = [mx.nd.ones((3,), ctx=mx.gpu(0)) for _ in range(6)]
        mx.nd.waitall()

        def doubles(run, inputs, outputs):
            cp.multiply(inputs[0], 2, out=outputs[0])

        def uploads(run, inputs, outputs):
            outputs[0][...] = inputs[0] + cp.asarray(np.ones(3, np.float32))

        def waits(run, inputs, outputs):
            outputs[0][...] = inputs[0] + float(inputs[0][0]) / float(inputs[0][0])

        order = [doubles, doubles, locals()[bad], doubles, doubles]
        steps = [
            (function, [one.raw()], [other.raw()], Node)
            for function, one, other in zip(order, arrays, arrays[1:], strict=False)
        ]
        run = Run(gpus.devices[0], False, {})
        storages = [array.storage for array in arrays]
        for value in range(1, 9):
            arrays[0][:] = value
            mx.engine.push(
                lambda: mx.graph.running.steps.run_steps(run, steps, "a test", capture=True),
                writes=storages,
                device=mx.gpu(0),
            ).wait()
            assert arrays[-1].asnumpy().max() == (4 * value + 1) * 4
        assert counted.captures == 2 and counted.refused == 1
        assert [len(piece.steps) for piece in run.memo["cuda graphs", id(steps)][1]] == [2, 1, 2]


def test_random_numbers_advance_in_a_graph_and_follow_a_seed():
    def drawn():
        mx.random.seed(5)
        bound.forward(is_train=True)
        first = bound.outputs[0].asnumpy()
        bound.forward(is_train=True)
        return first, bound.outputs[0].asnumpy()

    with graphs() as (_, counted):
        bound = mx.sym.Dropout(mx.sym.Variable("a"), p=0.5).bind(mx.gpu(0), {"a": mx.nd.ones((40, 40), ctx=mx.gpu(0))})
        runs = [drawn() for _ in range(4)]
        assert counted.replays
        for first, second in runs:
            np.testing.assert_array_equal(first, runs[0][0])
            np.testing.assert_array_equal(second, runs[0][1])
            assert (first != second).any()


class Node:
    op = None


def runs_of(gpus, steps, storages, count):
    """Run steps a number of times; yield before each run, when arrays may be replaced."""
    run = Run(gpus.devices[0], False, {})
    for number in range(count):
        yield number, run
        mx.engine.push(
            lambda: mx.graph.running.steps.run_steps(run, steps, "a test", capture=True),
            writes=storages,
            device=mx.gpu(0),
        ).wait()


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_arrays_that_move_are_copied_in_and_out(seed):
    with graphs(seed) as (gpus, counted):
        cp = gpus.cp
        order = [
            (lambda run, inputs, outputs: cp.multiply(inputs[0], inputs[1], out=outputs[0]), [None, None], [None]),
            (lambda run, inputs, outputs: cp.add(outputs[0], inputs[0], out=outputs[0]), [None], [None]),
            (lambda run, inputs, outputs: cp.add(inputs[0], 1, out=outputs[0]), [None], [None]),
        ]
        steps = [(*step, Node) for step in order]
        arrays, results = [], []
        weight, between = mx.nd.full((3,), 2, ctx=mx.gpu(0)), mx.nd.zeros((3,), ctx=mx.gpu(0))
        storages = [weight.storage, between.storage]
        for number, _ in runs_of(gpus, steps, storages, 30):
            x, total, out = (mx.nd.full((3,), value, ctx=mx.gpu(0)) for value in (number, 10 * number, -1))
            mx.nd.waitall()
            arrays += [x, total, out]
            steps[0][1][:] = x.raw(), weight.raw()
            steps[0][2][0] = steps[1][1][0] = between.raw()
            steps[1][2][0] = steps[2][1][0] = total.raw()
            steps[2][2][0] = out.raw()
            storages[2:] = [each.storage for each in (x, total, out)]
            results.append((total, out))
            if number == 15:
                weight[:] = 2
                weight.wait_to_read()
        for number, (total, out) in enumerate(results):
            assert total.asnumpy().tolist() == [12 * number] * 3
            assert out.asnumpy().tolist() == [12 * number + 1] * 3
        assert counted.captures and counted.replays >= 15


def test_steps_that_have_other_memory_each_time_and_gaps_are_left_alone():
    with graphs() as (gpus, counted):
        steps = [(lambda run, inputs, outputs: outputs[0].fill(1), [], [None], Node)]
        arrays, storages = [], []
        for _, run in runs_of(gpus, steps, storages, 60):  # noqa: B007 - it is looked at afterwards
            a = mx.nd.zeros((3, 4), ctx=mx.gpu(0))
            a.wait_to_read()
            arrays.append(a)
            steps[0][2][0] = a.raw()[:, ::2]
            storages[:] = [a.storage]
        assert counted.captures == 0 and not run.memo["cuda graphs", id(steps)][1][0].can_capture
        assert arrays[-1].asnumpy().sum() == 6


# -- available devices -------------------------------------------------------------------------------------


def test_without_a_gpu_the_message_says_so(monkeypatch):
    monkeypatch.setattr(driver, "gpus", lambda: ())
    with pytest.raises(DeviceError, match=r"gpu\(7\).*has no GPU.*mx\.cpu\(\)"):
        mx.nd.ones(3, ctx=mx.gpu(7))
    assert mx.num_gpus() == mx.context.num_gpus() == 0
    with pytest.raises(DeviceError, match="no GPU"):
        mx.gpu_memory_info(7)


H100 = driver.GPU(0, "H100", 80 << 30, "0000:01:00.0")


def test_a_device_number_out_of_range_lists_the_existing_gpus(monkeypatch):
    monkeypatch.setattr(driver, "gpus", lambda: (H100,))
    with pytest.raises(DeviceError, match=r"gpu\(0\): H100, 80\.0 GiB, PCI 0000:01:00\.0"):
        mx.nd.ones(3, ctx=mx.gpu(7))


def test_without_cupy_the_message_names_the_extra(monkeypatch):
    monkeypatch.setattr(driver, "gpus", lambda: (H100,))
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match=r"CuPy.*pip install cupy-cuda13x"):
        cuda.make(Context("gpu", 0))


def test_unusable_gpus_are_not_counted(monkeypatch):
    monkeypatch.setattr(driver, "gpus", lambda: (H100,))
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(library, "_warned", False)
    with pytest.warns(UserWarning, match="pip install cupy-cuda13x"):
        assert mx.num_gpus() == 0
    assert mx.num_gpus() == 0


class Driver:
    """A stand-in for the functions of libcuda that are called."""

    def cuInit(self, flags):  # noqa: N802
        return 0

    def cuDeviceGetCount(self, count):  # noqa: N802
        count._obj.value = 2
        return 0

    def cuDeviceGet(self, device, index):  # noqa: N802
        device._obj.value = index

    def cuDeviceGetName(self, name, size, device):  # noqa: N802
        name.value = b"A10"

    def cuDeviceGetPCIBusId(self, pci, size, device):  # noqa: N802
        pci.value = f"0000:0{device.value}:00.0".encode()

    def cuDeviceTotalMem_v2(self, nbytes, device):  # noqa: N802
        nbytes._obj.value = 24 << 30


def test_the_driver_reports_the_gpus():
    gpus_of_driver = driver.list_gpus(Driver())
    assert [each.pci for each in gpus_of_driver] == ["0000:00:00.0", "0000:01:00.0"]
    assert str(gpus_of_driver[1]) == "gpu(1): A10, 24.0 GiB, PCI 0000:01:00.0"


def test_devices_are_numbered_by_their_slots_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    driver.prefer_pci_order()
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    driver.prefer_pci_order()
    assert os.environ["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_pinned_arrays_lie_in_pinned_memory():
    with standing(1) as gpus:
        device = cuda.PinnedDevice(Context("cpu_pinned", 3), gpus.cp)
        array = device.allocate((10, 3), np.dtype(np.float32))
        assert staging.is_pinned(array[2:, 1]) and not staging.is_pinned(np.ones(3))
        assert array.shape == (10, 3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_after_a_fork_the_gpu_is_refused_and_the_cpu_works():
    with standing(1):
        a = mx.nd.ones((3,), ctx=mx.gpu(0))
        a.wait_to_read()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert (mx.nd.ones(3) + 1).asnumpy().sum() == 6
                try:
                    (a + 1).asnumpy()
                except DeviceError as error:
                    code = 0 if "fork" in str(error) else 2
                mx.nd.waitall()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (a + 1).asnumpy().sum() == 6


def test_copies_need_a_stream():
    with standing(1) as gpus, pytest.raises(AssertionError, match="on a stream"):
        copies.upload(gpus.devices[0], np.ones(3), None)


def test_an_array_knows_its_block():
    with standing(1) as gpus:
        a = mx.nd.ones((4, 4), ctx=mx.gpu(0))
        a.wait_to_read()
        block = lease_memory.block_of(a.raw()[1:, ::2])
        assert block is lease_memory.block_of(a.raw()) and block.size >= 64
        assert lease_memory.device_of(a.raw()) is gpus.devices[0] is devices.get(mx.gpu(0))
