"""Slices of predictions on devices with separate memory: simulated GPUs, and the stand-in for CUDA."""

import asyncio
import contextlib
import math
from itertools import groupby
from types import SimpleNamespace

import numpy as np
import pytest

import flowmx as mx
from benchmarks.workers import networks
from flowmx import settings
from flowmx.devices.sim import simulated
from flowmx.errors import BudgetError, OutOfMemory
from flowmx.gluon import nn
from flowmx.graph.checking import race
from flowmx.graph.compiler import options_of
from flowmx.graph.reports.unfolded import sliced_steps
from flowmx.ops.compiled.sliced import Staged
from tests.cupy_stand_in.standing import standing
from tests.graph.test_slices import CASES

pytestmark = pytest.mark.usefixtures("two_threads_a_kernel")

S = mx.sym
BATCH, EXAMPLE = 64, (3, 32, 32)


def conv(x, filters, kernel=3, stride=1, relu=True, **more):
    x = S.Convolution(x, num_filter=filters, kernel=(kernel,) * 2, pad=(kernel // 2,) * 2, stride=(stride,) * 2, **more)
    return S.relu(x) if relu else x


def halved(x):
    return S.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max")


def alexnet():
    """Wide layers, then products, the last of which has most of the weights."""
    x = halved(conv(S.var("data"), 16, kernel=5))
    x = halved(conv(conv(x, 24), 16))
    x = S.relu(S.FullyConnected(S.Flatten(x), num_hidden=32))
    return S.SoftmaxOutput(S.FullyConnected(S.Dropout(x), num_hidden=10), name="softmax")


def resnet():
    """Residual sums, and normalizations that are folded into the layers before them."""
    x = conv(S.var("data"), 16)
    for _ in range(3):
        y = S.relu(S.BatchNorm(conv(x, 16, relu=False, no_bias=True), fix_gamma=False))
        x = S.relu(x + S.BatchNorm(conv(y, 16, relu=False, no_bias=True), fix_gamma=False))
    return S.FullyConnected(S.Pooling(x, global_pool=True, pool_type="avg", kernel=(1, 1)), num_hidden=10)


def unet():
    """Values that are kept until the upward path, which ends with the initial size."""
    x = S.var("data")
    skips = []
    for filters in (8, 16):
        skips.append(conv(x, filters))
        x = halved(skips[-1])
    x = conv(x, 24)
    for filters, other in zip((16, 8), skips[::-1], strict=True):
        x = S.Deconvolution(x, num_filter=filters, kernel=(2, 2), stride=(2, 2))
        x = conv(S.concat(x, other, dim=1), filters)
    return conv(x, 2, kernel=1, relu=False)


NETWORKS = {"alexnet": alexnet, "resnet": resnet, "unet": unet}


def bound(symbol, context, batch=BATCH, example=EXAMPLE):
    """Return an executor with the same arrays on each device."""
    rng = np.random.default_rng(0)
    executor = symbol.simple_bind(context, grad_req="null", data=(batch, *example))
    for name, array in {**executor.arg_dict, **executor.aux_dict}.items():
        values = rng.uniform(0.5, 1.5, array.shape) if "var" in name else rng.normal(0, 0.2, array.shape)
        array[:] = mx.nd.array(values.astype("float32"), ctx=context)
    return executor


def results(executor):
    executor.forward()
    return [output.asnumpy() for output in executor.outputs]


def arrays_of(executor):
    """Return the bytes of all bound arrays."""
    arrays = [*executor.arg_dict.values(), *executor.aux_dict.values(), *executor.outputs]
    return sum(math.prod(array.shape) * 4 for array in arrays)


def whole_on_cpu(symbol, **more):
    with settings.override(exec_slice="off"):
        return bound(symbol, mx.cpu(), **more)


def near(result, expected, part=1e-6):
    for one, other in zip(result, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=part, atol=part * np.abs(other).max())


@contextlib.contextmanager
def room_for(executor, part, **more):
    """Return a simulated GPU that holds a network's arrays and this part of its internal values."""
    nbytes = arrays_of(executor) + part * executor.plan.internal_bytes() / 0.9 + (1 << 16)
    with simulated(memory=int(nbytes / 0.95), **more) as machine:
        yield machine


# -- what is computed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_slices_equal_the_whole_batch_in_a_quarter_of_its_memory(name, graphs):
    symbol = NETWORKS[name]()
    whole = whole_on_cpu(symbol)
    with simulated(graphs=graphs):
        at_once = bound(symbol, mx.sim())
        assert not sliced_steps(at_once.plan)
        near(results(at_once), results(whole))
        budget = whole.plan.lower_bound() // 4
        with settings.override(exec_memory_budget=budget, exec_check=True):  # free memory is overwritten
            parts = bound(symbol, mx.sim())
        assert parts.plan.internal_bytes() <= 0.25 * whole.plan.lower_bound()
        assert parts.arena.nbytes == 0
        for _ in range(3):
            near(results(parts), results(whole))
        assert parts.arena.nbytes == parts.plan.arena.size
        assert [op.staged for _, op in sliced_steps(parts.plan)] == [graphs]


@pytest.mark.parametrize("graphs", [False, True])
def test_plans_of_slices_pass_the_race_check(graphs):
    with simulated(graphs=graphs), settings.override(exec_slice=13):
        executor = bound(unet(), mx.sim())
        for _, op in sliced_steps(executor.plan):
            assert any(isinstance(node.op, Staged) for node in op.nodes()) is graphs
            race.check_plan(op.plan, options_of("cpu"), rounds=1)


@pytest.mark.parametrize("seed", [1, 2])
def test_slices_that_run_late_and_in_any_order_give_the_same(seed):
    expected = results(whole_on_cpu(unet()))
    with simulated(seed=seed, graphs=True), settings.override(exec_slice=24):
        parts = bound(unet(), mx.sim())
        for _ in range(2):
            near(results(parts), expected)


@pytest.mark.parametrize("name", CASES)
def test_staged_slices_of_networks_that_are_hard_to_slice(name):
    """Inputs that are read both whole and in parts, views at both ends, equal outputs."""
    make, example = CASES[name]
    symbol = make()
    expected = results(whole_on_cpu(symbol, batch=7, example=example))
    for length in (1, 3):
        with simulated(graphs=True), settings.override(exec_slice=length, exec_check=True):
            parts = bound(symbol, mx.sim(), 7, example)
            assert all(op.staged for _, op in sliced_steps(parts.plan))
            near(results(parts), expected)
        with captured(seed=length) as here, settings.override(exec_slice=length):
            parts = bound(symbol, mx.gpu(), 7, example)
            for _ in range(3):
                near(results(parts), expected, part=1e-5)
            assert here.counted.replays


# -- when -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_slices_are_made_where_the_whole_batch_does_not_fit_the_free_memory(name):
    symbol = NETWORKS[name]()
    whole = whole_on_cpu(symbol)
    with room_for(whole, 1.02):
        assert not sliced_steps(bound(symbol, mx.sim()).plan)
    with room_for(whole, 0.8):
        parts = bound(symbol, mx.sim())
        assert sliced_steps(parts.plan) and parts.plan.internal_bytes() <= 0.25 * whole.plan.internal_bytes()
        near(results(parts), results(whole))
    with room_for(whole, 0.5), settings.override(exec_slice="off"):
        executor = bound(symbol, mx.sim())
        assert not sliced_steps(executor.plan)
        executor.forward()
        with pytest.raises(OutOfMemory):
            executor.outputs[0].asnumpy()


@pytest.mark.parametrize("context", ["cpu", "sim"])
def test_a_budget_is_used_up_since_each_slice_costs_time(context):
    symbol = resnet()
    whole = whole_on_cpu(symbol)
    expected, counts = results(whole), []
    for part in (1.0, 0.7, 0.4, 0.1):
        budget = int(part * whole.plan.internal_bytes())
        with simulated(), settings.override(exec_memory_budget=budget):
            executor = bound(symbol, mx.Context(context))
            near(results(executor), expected)
        assert executor.plan.internal_bytes() <= budget
        counts.append(sum(len(op.starts) for _, op in sliced_steps(executor.plan)))
    assert counts[0] == 0
    assert counts == sorted(set(counts)), "the less there is, the more slices"


@pytest.mark.parametrize("context", ["cpu", "sim"])
def test_a_budget_that_nothing_fits_into_names_the_least(context):
    def planned(budget):
        with simulated(), settings.override(exec_memory_budget=budget):
            return bound(resnet(), mx.Context(context)).plan.internal_bytes()

    with pytest.raises(BudgetError, match=r"in slices of the batch, they take at least \d+ bytes") as caught:
        planned(1000)
    least = int(str(caught.value).split("they take at least ")[1].split()[0])
    assert planned(least) <= least


def test_branches_that_take_turns_come_before_slices():
    """Concurrent branches take more memory than sequential ones."""
    data = S.var("data")
    symbol = S.add_n(*[S.sum(S.exp(S.tile(data * at, reps=(1, 32))), axis=1) for at in range(1, 5)])
    small = {"batch": 128, "example": (64,)}
    expected = results(whole_on_cpu(symbol, **small))
    with settings.override(gpu_worker_nthreads=2), standing(1):
        at_once = bound(symbol, mx.gpu(), **small).plan
        assert any(len(stage) > 1 for stage in at_once.stages[0])
        with settings.override(exec_memory_budget=at_once.internal_bytes() - 1):
            in_turns = bound(symbol, mx.gpu(), **small)
        assert not any(in_turns.plan.stages) and not sliced_steps(in_turns.plan)
        near(results(in_turns), expected)
        with settings.override(exec_memory_budget=in_turns.plan.internal_bytes() - 1):
            parts = bound(symbol, mx.gpu(), **small)
        assert sliced_steps(parts.plan)
        near(results(parts), expected)


def test_off_holds_under_a_budget():
    whole = whole_on_cpu(resnet()).plan.internal_bytes()
    with simulated(), settings.override(exec_memory_budget=whole // 2, exec_slice="off"), pytest.raises(BudgetError):
        bound(resnet(), mx.sim())


def test_memory_of_an_arena_counts_as_free():
    """An executor's arena is reused for other shapes, however little memory is free."""
    symbol = resnet()
    whole = whole_on_cpu(symbol)
    with room_for(whole, 1.02):
        executor = bound(symbol, mx.sim())
        results(executor)
        filler = mx.nd.zeros((int(0.9 * mx.context.devices.get(mx.sim()).memory_info()[0]) // 4,), ctx=mx.sim())
        filler.wait_to_read()
        again = executor.reshape(data=(BATCH - 1, *EXAMPLE))
        assert not sliced_steps(again.plan)


def test_executors_that_have_not_run_yet_leave_each_other_room():
    """Arenas are allocated at first use, and several may be bound before."""
    symbol = resnet()
    whole = whole_on_cpu(symbol)
    expected = results(whole)
    with room_for(whole, 1.5 + arrays_of(whole) / whole.plan.internal_bytes()):
        first, second = (bound(symbol, mx.sim()) for _ in range(2))
        assert not sliced_steps(first.plan) and sliced_steps(second.plan)
        for executor in (second, first):
            near(results(executor), expected)
        del first, second, executor
        assert not sliced_steps(bound(symbol, mx.sim()).plan)


# -- hybridized blocks, serving ----------------------------------------------------------------------------------------


def net():
    block = nn.HybridSequential()
    block.add(
        nn.Conv2D(16, 3, padding=1, in_channels=3, activation="relu"), nn.Conv2D(16, 3, padding=1, in_channels=16)
    )
    block.add(nn.HybridLambda(lambda F, x: F.sum(x, axis=(2, 3))), nn.Dense(4, in_units=16))
    block.initialize(mx.init.Xavier(rnd_type="gaussian"))
    return block


def test_a_hybridized_block_takes_larger_batches_in_the_same_memory():
    block, x = net(), np.random.default_rng(0).random((BATCH, *EXAMPLE), "float32")
    expected = block(mx.nd.array(x)).asnumpy()
    for how, fits in (("off", False), ("auto", True)):
        with simulated(memory=4 << 20), settings.override(exec_slice=how):  # a value of all is 4 MiB
            block.collect_params().reset_ctx(mx.sim())
            block.hybridize(static_alloc=True)
            for _ in range(2):
                with contextlib.nullcontext() if fits else pytest.raises(OutOfMemory):
                    near([block(mx.nd.array(x, ctx=mx.sim())).asnumpy()], [expected], part=1e-5)
            block.collect_params().reset_ctx(mx.cpu())
            block.hybridize(False)


def test_a_service_takes_larger_batches_in_the_same_memory():
    async def served():
        async with mx.serve.Predictor(block, shape=EXAMPLE, sizes=(8, BATCH), ctx=mx.sim()) as predictor:
            return await predictor(x)

    block, x = net(), np.random.default_rng(0).random((BATCH, *EXAMPLE), "float32")
    expected = block(mx.nd.array(x)).asnumpy()
    for how, fits in (("off", False), ("auto", True)):
        with simulated(memory=4 << 20), settings.override(exec_slice=how):
            block.collect_params().reset_ctx(mx.sim())
            with contextlib.nullcontext() if fits else pytest.raises(OutOfMemory):
                near([asyncio.run(served())], [expected], part=1e-5)
            block.collect_params().reset_ctx(mx.cpu())
            block.hybridize(False)


# -- captured graphs ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def captured(seed=None, memory=1 << 28):
    with settings.override(cuda_graphs=True), standing(1, memory, seed=seed, streams=1) as gpus:
        yield SimpleNamespace(gpus=gpus, counted=gpus.devices[0].graphs)


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_region_is_captured_once_and_replayed_for_each_slice(seed):
    symbol = alexnet()
    small = {"batch": 10, "example": (3, 8, 8)}
    expected = results(whole_on_cpu(symbol, **small))
    with captured(seed) as here, settings.override(exec_slice=2):
        parts = bound(symbol, mx.gpu(), **small)
        ((_, op),) = sliced_steps(parts.plan)
        assert op.staged and len(op.starts) == 5
        for run in range(1, 5):
            near(results(parts), expected)
            assert here.counted.captures == 1
            assert here.counted.replays == 5 * run - 1, "the first slice of all goes step by step"
        assert not here.counted.refused


@pytest.mark.parametrize("seed", [None, 3])
def test_steps_around_a_region_are_captured_separately(seed):
    """A softmax over the batch needs the whole batch, between two regions."""
    x = conv(S.var("data"), 4)
    x = conv(S.broadcast_mul(x, S.softmax(S.sum(x, axis=(2, 3), keepdims=True), axis=0)), 4)
    symbol, small = S.Group([S.sum(x, axis=0), x]), {"batch": 9, "example": (3, 6, 6)}
    expected = results(whole_on_cpu(symbol, **small))
    with captured(seed) as here, settings.override(exec_slice=4):
        parts = bound(symbol, mx.gpu(), **small)
        regions = [op for _, op in sliced_steps(parts.plan)]
        assert all(len(op.starts) == 3 for op in regions)
        for _ in range(4):
            near(results(parts), expected)
        names = [node.op.name for node in parts.plan.steps()]
        assert names.count("_sliced") == 2 and "softmax" in names
        pieces = len(list(groupby(names, lambda name: name == "_sliced")))
        assert here.counted.captures == pieces
        assert here.counted.replays == 2 * (3 * 4 - 1) + (pieces - 2) * (4 - 1)
        assert not here.counted.refused


@pytest.mark.parametrize("seed", [None, 1])
def test_a_hybridized_block_whose_results_move_keeps_its_graph(seed):
    block, rng = net(), np.random.default_rng(0)
    batches = [rng.random((7, 3, 6, 6), "float32") for _ in range(12)]
    expected = [block(mx.nd.array(x)).asnumpy() for x in batches]
    with captured(seed) as here, settings.override(exec_slice=3):
        block.collect_params().reset_ctx(mx.gpu())
        block.hybridize(static_alloc=True)
        outputs = [block(mx.nd.array(x, ctx=mx.gpu())) for x in batches]
        near([output.asnumpy() for output in outputs], expected, part=1e-5)
        assert here.counted.captures == 1 and here.counted.replays == 3 * len(batches) - 1
        block.collect_params().reset_ctx(mx.cpu())


@pytest.mark.parametrize("graphs", [False, True])
def test_a_gpu_without_room_for_the_whole_batch_gets_slices(graphs):
    x = S.var("data")
    for _ in range(3):
        x = S.FullyConnected(S.tanh(x), num_hidden=256)
    symbol, small = S.sum(x, axis=1), {"batch": 1024, "example": (16,)}
    expected = results(whole_on_cpu(symbol, **small))
    with settings.override(cuda_graphs=graphs):
        with standing(1, 1 << 24):
            whole = bound(symbol, mx.gpu(), **small)
            assert not sliced_steps(whole.plan)
            arrays, internal = arrays_of(whole), whole.plan.internal_bytes()
        with standing(1, int((arrays + internal) / 0.95)):
            parts = bound(symbol, mx.gpu(), **small)
            assert [op.staged for _, op in sliced_steps(parts.plan)] == [graphs]
            near(results(parts), expected)


def test_a_simulated_gpu_counts_a_graph_and_its_copies_for_each_slice():
    def launches(executor, machine):
        mx.nd.waitall()
        machine.advance_clock()
        before = machine.clock.launching
        executor.forward()
        mx.nd.waitall()
        machine.advance_clock()
        return round((machine.clock.launching - before) / machine.devices[0].description.launch_seconds)

    with simulated(graphs=True) as machine, settings.override(exec_slice=16):
        parts = bound(resnet(), mx.sim())
        ((_, op),) = sliced_steps(parts.plan)
        outside = len(parts.plan.steps()) - 1
        first, again = (launches(parts, machine) for _ in range(2))
        assert first == 4 * len(op.plan.steps()) + outside + len(parts.plan.once)
        assert again == 4 * (1 + 2) + min(1, outside)


# -- reports -----------------------------------------------------------------------------------------------------------


def test_reports_show_slices_and_their_reason():
    whole = whole_on_cpu(unet())
    with room_for(whole, 0.7, graphs=True):
        expected = unet().memory_estimate(ctx=mx.sim(), grad_req="null", data=(BATCH, *EXAMPLE))
        executor = bound(unet(), mx.sim())
        ((node, op),) = sliced_steps(executor.plan)
        text = executor.plan.explain()
        assert f"{node.name}: {len(op.plan.steps())} steps, {op.description()}" in text
        assert "staged" in op.description()
        assert "the whole batch would take 8 MiB, and 5.656 MiB are free" in text
        assert "slice of data_output" in executor.plan.picture()
        assert expected.activations == executor.plan.internal_bytes()
        assert executor.plan.lower_bound() <= executor.plan.internal_bytes()


def test_a_plan_of_a_program_shows_slices():
    def predicting():
        block = net()
        block.collect_params().reset_ctx(mx.gpu())
        block.hybridize(static_alloc=True)
        block(mx.nd.ones((BATCH, *EXAMPLE), ctx=mx.gpu())).wait_to_read()

    roomy, tight = (mx.plan.run(predicting, memory=memory, graphs=True) for memory in ("1GB", "6MB"))
    assert roomy.fits and tight.fits and tight.devices[0].peak < 0.6 * roomy.devices[0].peak
    assert not roomy.slices and "slices of" not in roomy.text()
    assert "slices of" in tight.slices[0] and tight.slices[0] in tight.text()


@pytest.mark.parametrize("name", ["alexnet", "resnet_50", "googlenet", "unet"])
def test_large_networks_on_a_gpu_need_a_quarter_of_the_memory(name):
    symbol = unet() if name == "unet" else networks.symbol(mx, networks.NETWORKS[name])
    with simulated("h100", numerics=False, device_type="gpu", kernels="gpu", graphs=True):
        shapes = {"data": (BATCH, 3, 224, 224)}
        whole = symbol.simple_bind(mx.gpu(), grad_req="null", **shapes)
        assert not sliced_steps(whole.plan)
        with settings.override(exec_memory_budget=whole.plan.lower_bound() // 4):
            parts = symbol.simple_bind(mx.gpu(), grad_req="null", **shapes)
        assert sliced_steps(parts.plan)
        for executor in (whole, parts):
            executor.forward()
        mx.nd.waitall()
        assert parts.arena.nbytes <= whole.arena.nbytes // 4


# -- training ----------------------------------------------------------------------------------------------------------


def trained(symbol, context, budget):
    """Return an executor after some training steps within a budget, and its gradients."""
    rng = np.random.default_rng(0)
    with settings.override(exec_memory_budget=budget):
        executor = symbol.simple_bind(context, data=(64, 16), grad_req="write")
    for array in executor.arg_arrays:
        array[:] = rng.normal(0, 0.3, array.shape).astype("float32")
    for _ in range(3):
        executor.forward_backward()
    return executor, [gradient.asnumpy() for gradient in executor.grad_dict.values()]


def deep(dropping=False):
    x = S.var("data")
    for _ in range(4):
        x = S.FullyConnected(S.tanh(x), num_hidden=32)
    x = S.Dropout(x, p=0.5) if dropping else x
    return S.SoftmaxOutput(S.FullyConnected(x, num_hidden=4), name="softmax")


@pytest.mark.parametrize("graphs", [False, True])
def test_micro_batches_of_a_gpu_are_one_graph(graphs):
    _, expected = trained(deep(), mx.cpu(), 0)
    with settings.override(cuda_graphs=graphs), standing(1, streams=1) as gpus:
        whole = trained(deep(), mx.gpu(), 0)[0].plan.internal_bytes()
        before = gpus.devices[0].graphs.captures if graphs else 0
        executor, result = trained(deep(), mx.gpu(), whole // 3)
        assert executor.plan.internal_bytes() <= whole // 3
        ((_, op),) = sliced_steps(executor.plan)
        assert not op.staged and len(op.starts) > 2
        for one, other in zip(result, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        assert not graphs or gpus.devices[0].graphs.captures == before + 2


def test_random_numbers_of_a_gpu_are_drawn_for_the_whole_batch():
    with standing(1, streams=1):
        whole = trained(deep(dropping=True), mx.gpu(), 0)[0].plan.internal_bytes()
        executor, _ = trained(deep(dropping=True), mx.gpu(), whole * 6 // 10)
        regions = [op for _, op in sliced_steps(executor.plan)]
        assert regions and not any(op.traits.uses_random for op in regions)
