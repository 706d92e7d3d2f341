"""The device interface on a real GPU: the tests of the other devices, and those that need real hardware."""

import gc
import time

import numpy as np
import pytest

import flowmx as mx
from flowmx import devices
from flowmx.engine.runtime import engine
from flowmx.errors import DeviceError, OutOfMemory
from flowmx.ops.registry.operators import Run
from tests.device_bodies import *  # noqa: F403
from tests.engine.test_serial_equivalence import check
from tests.gpu_programs import flow_on
from tests.programs import make

pytestmark = pytest.mark.filterwarnings("ignore::flowmx.errors.CrossDeviceWarning")


@pytest.fixture
def places():
    """Two GPUs; where there is one, it twice."""
    return [mx.gpu(0), mx.gpu(1 if mx.num_gpus() > 1 else 0)]


@pytest.fixture
def opened(cp):
    return cp.from_dlpack


@pytest.fixture
def device():
    return devices.get(mx.gpu(0))


def test_a_random_program_equals_a_serial_run(cp, places):
    for seed in range(1000):
        program = make(seed, length=30)
        with mx.engine.using(engine_type="NaiveEngine" if seed % 3 == 0 else "ThreadedEnginePerDevice"):
            result = flow_on(cp)(program, places).run()
            engine.wait_all(throw=False)
        check(program, result)
    engine.failures.clear()


def test_an_array_is_shared_with_other_libraries(cp):
    a = mx.nd.ones((3, 4), ctx=mx.gpu(0))
    assert a.__dlpack_device__() == (2, 0)
    assert float(cp.from_dlpack(a).sum()) == 12


def test_free_and_total_bytes_are_those_of_the_card(cp, device):
    free, total = mx.gpu_memory_info(0)
    assert total == cp.cuda.Device(0).mem_info[1] and 0 < free < total
    a = mx.nd.ones((1 << 28,), ctx=mx.gpu(0))
    a.wait_to_read()
    assert free - mx.gpu_memory_info(0)[0] == pytest.approx(1 << 30, rel=0.01)
    del a
    gc.collect()
    mx.gpu(0).empty_cache()
    assert mx.gpu_memory_info(0)[0] == pytest.approx(free, rel=0.01)


def test_shapes_that_vary_peak_near_the_largest(device):
    device.empty_cache()
    rng, largest = np.random.default_rng(0), 0
    device.pool.peak = device.pool.used
    before = device.pool.used
    for _ in range(1000):
        n = int(rng.integers(1, 4_000_000))
        largest = max(largest, 3 * 4 * n)
        a = mx.nd.ones((n,), ctx=mx.gpu(0))
        b = a * 2
        c = a + b
        c.wait_to_read()
        del a, b, c
    assert device.pool.peak - before <= 1.3 * largest


def test_memory_runs_out_with_the_largest_holders_named(device):
    array = mx.nd.ones((1 << 28,), ctx=mx.gpu(0))
    with pytest.raises(OutOfMemory, match="largest holders") as caught:
        mx.nd.ones((mx.gpu_memory_info(0)[1],), ctx=mx.gpu(0), dtype="uint8").wait_to_read()
    assert "operation 'full'" in str(caught.value)
    assert (array + 1).asnumpy()[-1] == 2
    engine.failures.clear()


def test_memory_that_others_have_taken_is_an_error_too(cp, device):
    device.empty_cache()
    free = cp.cuda.Device(0).mem_info[0]
    with cp.cuda.Device(0):
        other = cp.cuda.Memory(free - (1 << 28))
    try:
        with pytest.raises(OutOfMemory):
            mx.nd.ones((1 << 29,), ctx=mx.gpu(0), dtype="uint8").wait_to_read()
        assert mx.nd.ones((1 << 20,), ctx=mx.gpu(0)).asnumpy()[-1] == 1
    finally:
        del other
        engine.failures.clear()


def test_a_launch_does_not_wait():
    a = mx.nd.ones((8192, 8192), ctx=mx.gpu(0))
    mx.nd.dot(a, a).wait_to_read()
    began = time.perf_counter()
    for _ in range(10):
        b = mx.nd.dot(a, a)
    handed_over = time.perf_counter() - began
    b.wait_to_read()
    assert handed_over < 0.5 * (time.perf_counter() - began)


def test_copies_overlap_with_computation():
    """A loop bound by its loader takes at most 1.1 of the larger of copying and computing."""
    batches = [mx.nd.ones((64, 3, 512, 512), ctx=mx.cpu_pinned(0)) for _ in range(4)]
    a = mx.nd.ones((4096, 4096), ctx=mx.gpu(0)) * 1e-4

    def compute():
        x = a
        for _ in range(6):
            x = mx.nd.dot(x, a)
        return x

    def seconds(copying, computing):
        for attempt in range(2):
            began = time.perf_counter()
            for step in range(12):
                copy = batches[step % 4].as_in_context(mx.gpu(0)) if copying else None
                result = compute() if computing else None
            mx.nd.waitall()
            del copy, result
            if attempt:
                return time.perf_counter() - began
        return 0.0

    copying, computing, both = seconds(True, False), seconds(False, True), seconds(True, True)
    print(f"copying {copying:.3f} s, computing {computing:.3f} s, both {both:.3f} s")
    assert both <= 1.1 * max(copying, computing) + 0.3 * min(copying, computing)


@pytest.fixture
def graphs(device):
    from flowmx.devices.cuda.graphs import Graphs

    before, device.graphs = device.graphs, Graphs(device)
    yield device.graphs
    device.graphs = before


def trained(context, steps):
    rng = np.random.default_rng(0)
    x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=64, name="a")
    x = mx.sym.FullyConnected(mx.sym.Activation(x, act_type="tanh"), num_hidden=8, name="b")
    bound = x.simple_bind(context, data=(32, 16), grad_req="write")
    for array in bound.arg_arrays:
        array[:] = rng.standard_normal(array.shape) * 0.3
    outputs = []
    for _ in range(steps):
        bound.forward(is_train=True, data=mx.nd.array(rng.standard_normal((32, 16)), ctx=context))
        bound.backward(mx.nd.ones((32, 8), ctx=context))
        for name, gradient in bound.grad_dict.items():
            bound.arg_dict[name] -= 0.01 * gradient
        outputs.append(bound.outputs[0].asnumpy())
    return outputs


def test_a_bound_graph_is_captured_and_replayed(graphs):
    expected, actual = trained(mx.cpu(0), 10), trained(mx.gpu(0), 10)
    for one, other in zip(expected, actual, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    assert graphs.captures >= 2 and graphs.replays >= 2 * 8 and not graphs.refused


def sliced_up(context, how):
    """The outputs of some runs of a bound network with convolutions, in slices."""
    rng = np.random.default_rng(0)
    x = mx.sym.Variable("data")
    for _ in range(3):
        x = mx.sym.relu(mx.sym.Convolution(x, num_filter=16, kernel=(3, 3), pad=(1, 1)))
    x = mx.sym.FullyConnected(mx.sym.Pooling(x, global_pool=True, pool_type="avg", kernel=(1, 1)), num_hidden=8)
    with mx.settings.override(exec_slice=how):
        bound = x.simple_bind(context, data=(50, 3, 32, 32), grad_req="null")
    for array in bound.arg_arrays:
        array[:] = rng.standard_normal(array.shape) * 0.3
    outputs = []
    for _ in range(4):
        bound.forward()
        outputs.append(bound.outputs[0].asnumpy())
    return bound.plan, outputs


def test_a_region_is_captured_once_and_replayed_for_each_slice(graphs):
    (_, expected), (plan, actual) = sliced_up(mx.cpu(0), "off"), sliced_up(mx.gpu(0), 16)
    assert "4 slices of 16 of 50, staged" in plan.explain()
    for one, other in zip(expected, actual, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-3 * np.abs(one).max())
    assert graphs.captures >= 1 and graphs.replays >= 4 * 4 - 1 and not graphs.refused


def test_without_graphs_slices_lie_in_the_whole(device):
    (_, expected), (plan, actual) = sliced_up(mx.cpu(0), "off"), sliced_up(mx.gpu(0), 16)
    assert "staged" not in plan.explain() or device.replays
    for one, other in zip(expected, actual, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-3 * np.abs(one).max())


def test_steps_that_copy_from_the_host_are_not_captured(graphs, device, cp):
    source, target = (mx.nd.ones((3,), ctx=mx.gpu(0)) for _ in range(2))
    mx.nd.waitall()

    class Node:
        op = None

    def uploads(run, inputs, outputs):
        outputs[0][...] = inputs[0] * cp.asarray(np.arange(3.0, dtype=np.float32))

    def waits(run, inputs, outputs):
        outputs[0][...] = inputs[0] * float(inputs[0][0])

    for function, value in ((uploads, 2), (waits, 1)):
        steps = [(function, [source.raw()], [target.raw()], Node)]
        run = Run(device, False, {})
        for _ in range(4):
            mx.engine.push(
                lambda steps=steps, run=run: mx.graph.running.steps.run_steps(run, steps, "a test", capture=True),
                reads=[source], writes=[target], device=mx.gpu(0),
            ).wait()  # fmt: skip
            assert target.asnumpy()[-1] == value
    assert graphs.captures == 0 and graphs.refused == 2


def test_a_graph_that_copies_plain_memory_of_the_host_is_told_from_others(cp, device):
    from flowmx.devices.cuda.capture import copies_host_memory

    stream = cp.cuda.Stream(non_blocking=True)
    a, b, host = cp.zeros(1000), cp.ones(1000), np.ones(1000)
    with stream:
        stream.begin_capture()
        a.data.copy_from_device_async(b.data, a.nbytes, stream)
        assert not copies_host_memory(stream.end_capture())
        stream.begin_capture()
        a.data.copy_from_host_async(host.ctypes.data, a.nbytes, stream)
        assert copies_host_memory(stream.end_capture())


def test_dropout_advances_in_a_graph_and_follows_a_seed(graphs):
    bound = mx.sym.Dropout(mx.sym.Variable("a"), p=0.5).bind(mx.gpu(0), {"a": mx.nd.ones((300, 300), ctx=mx.gpu(0))})

    def drawn():
        mx.random.seed(5)
        outputs = []
        for _ in range(3):
            bound.forward(is_train=True)
            outputs.append(bound.outputs[0].asnumpy())
        return outputs

    runs = [drawn() for _ in range(3)]
    for run in runs:
        np.testing.assert_array_equal(run, runs[0])
        assert (run[0] != run[1]).any() and (run[1] != run[2]).any()


def test_a_gpu_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(DeviceError, match=r"gpu\(0\): .* GiB, PCI"):
        mx.nd.ones(3, ctx=mx.gpu(99))
