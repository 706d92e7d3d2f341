"""Replays of backward passes make few native calls, with the same gradients, errors and memory as without them."""

import os
import random
import re
import threading

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd, nd, settings
from flowmx.gluon import nn, rnn
from flowmx.ndarray import replay_frames
from flowmx.ndarray.replay_places import _Memory
from flowmx.ndarray.replay_steps import Step
from flowmx.ops.kernels import small_arrays
from flowmx.ops.kernels.llvm import native_run
from tests.native_runs import eager_native_runs
from tests.replays import eager_replays

pytestmark = pytest.mark.skipif(not native_run.prepare(), reason="native runs are not possible here")


@pytest.fixture(autouse=True)
def forms():
    """Learn in the first pass, record in the second, and make native calls from the third on."""
    with eager_replays() as forms, eager_native_runs():
        yield forms


def variable(value, request="write"):
    array = nd.array(value)
    array.attach_grad(request)
    return array


def frames_of(forms):
    return [frame for replay in forms.replays.values() for frame in replay.frames._free]


def names_of(forms):
    """The number of steps of each native run, and the names of the operators of the other steps."""
    pieces = [piece for frame in frames_of(forms) for program in frame.runs for piece in program.pieces]
    return [len(piece.steps) if piece.run else [step.name for _, step in piece.steps] for piece in pieces]


def chain(x, length=20):
    y = x
    for _ in range(length):
        y = y * 0.9 + x
    return y


def passes(compute, *variables, count=4):
    """Run passes; return the gradients of each."""
    gradients = []
    for _ in range(count):
        with autograd.record():
            y = compute()
        y.backward()
        gradients.append([each.grad.asnumpy() for each in variables])
    return gradients


def assert_equal_passes(gradients):
    for later in gradients[1:]:
        for one, other in zip(gradients[0], later, strict=True):
            np.testing.assert_array_equal(one, other)


# -- the same gradients -----------------------------------------------------------------------------------------


def test_a_chain_is_one_native_call(forms):
    x = variable(np.linspace(-1, 1, 16))
    assert_equal_passes(passes(lambda: chain(x, 10), x))
    assert names_of(forms) == [20]


def dense():
    net = nn.Sequential()
    net.add(nn.Dense(16, activation="relu"), nn.Dense(16, activation="tanh"), nn.Dense(4))
    return net, lambda x: net(x).square().mean(), (8, 6)


def cells():
    cell, out = rnn.GRUCell(16, input_size=8), nn.Dense(4)
    net = nn.Sequential()
    net.add(cell, out)

    def loss(x):
        states = cell.begin_state(6)
        for each in range(len(x)):
            hidden, states = cell(x[each], states)
        return out(hidden).square().mean()

    return net, loss, (5, 6, 8)


def images():
    net = nn.Sequential()
    net.add(nn.Conv2D(4, 3, activation="relu"), nn.MaxPool2D(2), nn.Flatten(), nn.Dense(3), nn.Dropout(0.5))
    return net, lambda x: net(x).square().sum(), (2, 3, 8, 8)


def normalized():
    net = nn.Sequential()
    net.add(nn.Dense(16), nn.BatchNorm(), nn.LayerNorm(), nn.Dense(16, activation="sigmoid"))
    return net, lambda x: (net(x).reshape((4, 4, 8)).transpose((1, 0, 2)).softmax() * 3).sum(), (8, 6)


def trained(make, steps, optimizer="sgd"):
    """Train for some steps; return the gradients and weights of the last step."""
    mx.random.seed(3)
    net, loss_of, shape = make()
    net.initialize(mx.init.Xavier())
    x = nd.array(np.random.default_rng(1).standard_normal(shape))
    loss_of(x).wait_to_read()
    trainer = mx.gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.1})
    for _ in range(steps):
        with autograd.record():
            loss = loss_of(x)
        loss.backward()
        trainer.step(1)
    params = [each for each in net.collect_params().values() if each.grad_req != "null"]
    return [array.asnumpy() for each in params for array in (each.grad(), each.data())]


@pytest.mark.parametrize("make", [dense, cells, images, normalized])
@pytest.mark.parametrize("kind", ["ThreadedEnginePerDevice", "ThreadedEngine", "NaiveEngine"])
def test_training_is_bitwise_equal(make, kind, forms):
    with mx.engine.using(engine_type=kind):
        results = trained(make, 6)
    assert any(isinstance(each, int) and each > 2 for each in names_of(forms))
    with settings.override(native_runs=False):
        expected = trained(make, 6)
    for one, other in zip(results, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_most_steps_of_a_network_are_native(forms):
    trained(dense, 4)
    names = names_of(forms)
    separate = [name for each in names if not isinstance(each, int) for name in each]
    assert sum(each for each in names if isinstance(each, int)) > 3 * len(separate)


def test_values_of_new_data_are_read(forms):
    x, factor = variable([1.0, 2.0, 3.0, 4.0]), nd.ones(4)
    for scale in range(5):
        factor[:] = scale
        with autograd.record():
            y = x * factor * 2
        y.backward()
        np.testing.assert_array_equal(x.grad.asnumpy(), [2.0 * scale] * 4)


def test_gradients_are_added_to_buffers(forms):
    x = variable([1.0, 2.0], "add")
    for number in range(1, 6):
        passes(lambda: chain(x, 1), x, count=1)
        np.testing.assert_allclose(x.grad.asnumpy(), [1.9 * number] * 2, 1e-6)


def test_several_variables_with_one_gradient(forms):
    x, y = variable([1.0, 2.0]), variable([3.0, 4.0])
    for _ in range(5):
        passes(lambda: x + y, count=1)
        np.testing.assert_array_equal(x.grad.asnumpy(), [1, 1])
        np.testing.assert_array_equal(y.grad.asnumpy(), [1, 1])
        x.grad[:] = 5  # the other gradient has separate memory
        np.testing.assert_array_equal(y.grad.asnumpy(), [1, 1])


def test_gradients_that_others_read_keep_their_values(forms):
    x = variable([1.0, 2.0])
    earlier = []
    for scale in range(1, 6):
        with autograd.record():
            y = chain(x, 1) * scale
        y.backward()
        earlier.append((x.grad.copy(), scale))
        for copy, factor in earlier:
            np.testing.assert_allclose(copy.asnumpy(), [1.9 * factor] * 2, 1e-6)


def test_a_retained_tape_is_replayed_again(forms):
    x = variable([1.0, 2.0])
    with autograd.record():
        y = chain(x, 3)
    expected = None
    for _ in range(5):
        y.backward(retain_graph=True)
        expected = x.grad.asnumpy() if expected is None else expected
        np.testing.assert_array_equal(x.grad.asnumpy(), expected)


def test_views_of_other_layouts(forms):
    x = variable(np.arange(12.0).reshape(3, 4))
    other = nd.array(np.arange(12.0).reshape(4, 3))
    gradients = passes(lambda: (x * other.T * 2).sum(), x, count=5)
    assert_equal_passes(gradients)
    np.testing.assert_array_equal(gradients[0][0], 2 * np.arange(12.0).reshape(4, 3).T)


# -- stepping aside ---------------------------------------------------------------------------------------------


def test_native_runs_can_be_turned_off_later(forms, monkeypatch):
    x = variable([1.0, 2.0])
    expected = passes(lambda: chain(x), x)[-1][0]
    monkeypatch.setattr(native_run.NativeRun, "__call__", None)
    with settings.override(native_runs=False):
        np.testing.assert_array_equal(passes(lambda: chain(x), x)[-1][0], expected)


def test_a_form_with_other_bits_is_not_recorded(forms, monkeypatch):
    real = small_arrays.native_form

    def wrong(op, *arguments):
        form = real(op, *arguments)
        if form is None or op.name != "_mul_scalar":
            return form

        def compute(inputs, outputs):
            form(inputs, outputs)
            outputs[0][...] += 1

        return compute

    monkeypatch.setattr(replay_frames, "native_form", wrong)
    x = variable([1.0, 2.0])
    assert_equal_passes(passes(lambda: chain(x, 2), x))
    assert ["_mul_scalar"] in names_of(forms)


def failing(error):
    def forward(run, inputs, outputs):
        raise error

    return forward


def test_an_error_of_a_step_reaches_only_dependent_gradients(forms):
    x, y = variable([2.0, 1.0]), variable([3.0, 3.0, 1.0])

    def step():
        with autograd.record():
            heads = chain(x, 2), (chain(y, 2) * 3).exp()
        autograd.backward(list(heads))

    for _ in range(4):
        step()
    expected = x.grad.asnumpy(), y.grad.asnumpy()
    (key,) = forms.replays
    original = forms.replays[key]
    (program,) = original.programs
    for name in {each.name for each in program.steps if isinstance(each, Step) and each.forward}:
        steps = tuple(
            each._replace(forward=failing(ValueError("no")))
            if isinstance(each, Step) and each.name == name and each.outputs[0][1] == (3,)
            else each
            for each in program.steps
        )
        forms.replays[key] = original._replace(programs=(program._replace(steps=steps),))
        step()
        np.testing.assert_array_equal(x.grad.asnumpy(), expected[0])
        if steps != program.steps and name != "ones_like":  # constants are not computed again
            with pytest.raises(ValueError, match="no"):
                y.grad.asnumpy()
        forms.replays[key] = original
        for _ in range(3):
            step()  # a new total clears the error
            np.testing.assert_array_equal(y.grad.asnumpy(), expected[1])


def test_a_failing_native_run_names_its_operator(forms, monkeypatch):
    is_broken = []

    class Breakable(native_run.NativeRun):
        def __call__(self):
            if is_broken:
                raise RuntimeError("broken")
            return super().__call__()

    monkeypatch.setattr(replay_frames, "NativeRun", Breakable)
    net, loss_of, shape = images()
    net.initialize()
    x = nd.ones(shape)

    def step():
        with autograd.record():
            loss = loss_of(x)
        loss.backward()

    for _ in range(4):
        step()
    is_broken.append(True)
    errors = []
    for _ in range(4):  # some passes record
        step()
        try:
            net[0].weight.grad().asnumpy()
        except RuntimeError as error:
            errors.append(error)
    operators = "raised by operation .(_backward_|broadcast_mul|reshape_like)"
    assert errors and all(re.search(operators, "".join(error.__notes__)) for error in errors)
    is_broken.clear()
    for _ in range(3):
        step()
    assert np.isfinite(net[0].weight.grad().asnumpy()).all()


def test_a_failed_input_fails_the_dependent_gradients(forms):
    x, y, factor = variable([2.0]), variable([3.0]), nd.array([1.0])

    def step():
        with autograd.record():
            heads = x * factor * 2, y * 2
        autograd.backward(list(heads))

    for _ in range(4):
        step()
    gate, release = mx.engine.Variable("gate"), threading.Event()

    def fails_late():
        release.wait(10)
        raise ZeroDivisionError("late")

    mx.engine.push(fails_late, reads=[gate], writes=[factor])
    step()
    release.set()
    np.testing.assert_array_equal(y.grad.asnumpy(), [2])
    with pytest.raises(ZeroDivisionError):
        x.grad.asnumpy()
    factor[:] = 3
    for _ in range(3):
        step()
        np.testing.assert_array_equal(x.grad.asnumpy(), [6])


# -- memory and threads -----------------------------------------------------------------------------------------


def test_passes_at_the_same_time_use_separate_memory(forms):
    inputs = [variable(np.full(64, number + 1.0)) for number in range(3)]
    expected = [passes(lambda x=x: chain(x).square(), x)[-1][0] for x in inputs]
    wrong = []

    def work(x, gradient):
        for _ in range(30):
            if not np.array_equal(passes(lambda: chain(x).square(), x, count=1)[0][0], gradient):
                wrong.append(x)

    threads = [threading.Thread(target=work, args=each) for each in zip(inputs, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_fork_runs_its_own_calls(forms):
    x = variable(np.linspace(-1, 1, 16))
    expected = passes(lambda: chain(x), x)[-1][0]
    pid = os.fork()
    if not pid:
        same = [np.array_equal(each[0], expected) for each in passes(lambda: chain(x), x)]
        os._exit(0 if all(same) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    np.testing.assert_array_equal(passes(lambda: chain(x), x)[-1][0], expected)


def test_large_passes_keep_no_memory(forms, monkeypatch):
    monkeypatch.setattr(replay_frames, "_MAX_BYTES", 100)
    x = variable(np.linspace(-1, 1, 64))
    assert_equal_passes(passes(lambda: chain(x), x))
    assert forms.replayed == 3 and not frames_of(forms)


def test_the_least_recently_used_frames_are_dropped(forms, monkeypatch):
    variables = [variable(np.linspace(-1, 1, 64 + each)) for each in range(4)]
    monkeypatch.setattr(replay_frames, "_all", type(replay_frames._all)())
    passes(lambda: chain(variables[0]), variables[0])
    (frame,) = frames_of(forms)
    monkeypatch.setattr(replay_frames, "_MAX_TOTAL", 5 * frame.nbytes // 2)
    for x in variables[1:]:
        passes(lambda x=x: chain(x), x)
    assert len(frames_of(forms)) == 2
    assert_equal_passes(passes(lambda: chain(variables[0]), variables[0]))


def test_values_that_live_at_the_same_time_do_not_overlap():
    draw = random.Random(1)
    for _ in range(50):
        memory, taken = _Memory(), []
        for start in sorted(draw.randrange(40) for _ in range(60)):
            nbytes, end = draw.randrange(0, 500), start + draw.randrange(8)
            offset = memory.take(nbytes, start, end)
            assert offset % 64 == 0 and offset + nbytes <= memory.nbytes
            for other, size, last in taken:
                if last >= start:
                    assert offset + nbytes <= other or other + size <= offset
            taken.append((offset, nbytes, end))
