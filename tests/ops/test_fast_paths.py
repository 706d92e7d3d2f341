"""Fast paths are used where they should be; results cannot show it, so the tests observe the calls."""

import threading
import time

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd, devices
from flowmx.devices.sim import simulated
from flowmx.devices.streams import Stream
from flowmx.engine import push
from flowmx.engine.runtime import engine
from flowmx.ndarray import backward, backward_bulks, computations, core, fast_calls, gradient_rules
from flowmx.ops.registry.operators import Operator, lookup


def counted(monkeypatch, owner, name, key=lambda *arguments: None):
    """Return a list to which each call of a function appends ``key(*arguments)``."""
    original, calls = getattr(owner, name), []

    def spy(*arguments, **named):
        calls.append(key(*arguments))
        return original(*arguments, **named)

    monkeypatch.setattr(owner, name, spy)
    return calls


def recorded_names(monkeypatch):
    """Return a list to which each call that may be recorded appends its name."""
    names = counted(monkeypatch, core, "record", lambda name, *rest: name)

    def record_result(name, *rest, real=core.record_result):
        names.append(name)
        real(name, *rest)

    monkeypatch.setattr(fast_calls, "record_result", record_result)
    return names


@pytest.fixture
def at_push(monkeypatch):
    """Record the names of operations that run at their push, on the pushing thread."""
    names = counted(monkeypatch, type(engine.runner), "run_at_push", lambda runner, op: op.name)

    def run_light(actor, reads, function, *arguments, real=engine.run_light):
        done = real(actor, reads, function, *arguments)
        if done:
            names.append(function.__name__)
        return done

    monkeypatch.setattr(engine, "run_light", run_light)
    return names


def arrays(*shapes):
    arrays = [mx.nd.array(np.random.default_rng(0).standard_normal(shape)) for shape in shapes]
    arrays[0] + 0  # the engine starts with the first operation
    rest()
    return arrays


def rest():
    """Wait until the CPU is idle, and its workers have released the last operation."""
    mx.nd.waitall()
    actor = devices.get(mx.cpu()).compute
    while not actor.is_idle():  # the test's timeout is the limit
        time.sleep(0)


# -- imperative calls ----------------------------------------------------------------------------------


def test_small_operators_run_at_their_push(at_push):
    a, b, weight = arrays((3, 4), (3, 4), (5, 4))
    at_push.clear()
    results = [a + b, a * 2, a.T, mx.nd.relu(a), a.sum(), mx.nd.FullyConnected(a, weight, num_hidden=5, no_bias=True)]
    a += 1
    a[1] = 0
    assert len(at_push) >= len(results) + 2
    assert engine.stats()["pending"] == 0


def test_small_operators_run_at_their_push_again_after_a_bulk(at_push):
    (a,) = arrays((3, 4))
    with mx.engine.bulk(4), mx.engine.bulk(2):
        b = a + 1
    b.wait_to_read()
    rest()
    at_push.clear()
    a + 1
    assert len(at_push) == 1


def test_large_or_dependent_operations_are_queued(at_push):
    a, large = arrays((3, 4), (600, 600))
    may_go = threading.Event()
    push(may_go.wait, writes=[a.storage], name="slow")
    at_push.clear()
    b = a + 1
    assert at_push == []
    may_go.set()
    b.wait_to_read()
    mx.nd.dot(large, large).wait_to_read()
    assert "dot" not in at_push


def test_a_repeated_call_skips_inference_and_lookups(monkeypatch):
    a, b, wide = arrays((3, 4), (3, 4), (4, 7))
    for x in (a, wide):
        x + x, x * 2, 1 - x, mx.nd.exp(x)
        x += 1
    general = counted(monkeypatch, fast_calls, "invoke")
    inferred = counted(monkeypatch, Operator, "spec")
    for x in (a, wide, b):
        x + x, x * 2, 1 - x, mx.nd.exp(x)
        x += 1
    assert not general and not inferred


def test_shapes_of_an_operator_are_inferred_once(monkeypatch):
    a, weight = arrays((3, 4), (5, 4))
    dense = lookup("FullyConnected")
    calls = counted(monkeypatch, dense, "infer_shape")
    for _ in range(3):
        mx.nd.FullyConnected(a, weight, num_hidden=5, no_bias=True, flatten=False)
    assert len(calls) <= 1


# -- backward passes -----------------------------------------------------------------------------------


def deep(x, weights):
    for weight in weights:
        x = mx.nd.tanh(mx.nd.FullyConnected(x, weight, num_hidden=4, no_bias=True) + 1)
    return x.sum()


def backward_pass(x, weights):
    for each in (x, *weights):
        each.attach_grad()
    with autograd.record():
        loss = deep(x, weights)
    pushed = engine.stats()["pushed"]
    loss.backward()
    return engine.stats()["pushed"] - pushed


def test_a_backward_pass_uses_cached_rules_for_every_node(monkeypatch):
    x, *weights = arrays((3, 4), *[(4, 4)] * 6)
    backward_pass(x, weights)
    learned = counted(monkeypatch, backward, "learn")
    called = counted(monkeypatch, backward, "_gradients")
    by_rule = counted(monkeypatch, backward.BackwardPass, "_apply_rule", lambda walk, node, grads: node.name)
    notes = counted(monkeypatch, gradient_rules._Trace, "note")
    pushed = backward_pass(x, weights)
    assert by_rule.count("FullyConnected") == 6
    assert not learned and not called and not notes
    parts = 3 * 6 + 1 + 7  # gradients and stored values
    assert pushed <= -(-parts // backward_bulks.MAX_PARTS) + 1


def test_gradients_of_large_networks_run_as_one_operation_per_bulk():
    x, *weights = arrays((3, 4), *[(4, 4)] * 40)
    backward_pass(x, weights)
    pushed = backward_pass(x, weights)
    parts = 3 * 40 + 1 + 41
    assert parts // (2 * backward_bulks.MAX_PARTS) <= pushed <= -(-parts // backward_bulks.MAX_PARTS) + 2


def test_small_bulks_run_at_their_push(at_push):
    x, *weights = arrays((3, 4), (4, 4))
    backward_pass(x, weights)
    rest()
    at_push.clear()
    assert backward_pass(x, weights) == 1
    assert "backward" in at_push[-1]
    assert engine.stats()["pending"] == 0


# -- streams -------------------------------------------------------------------------------------------


@pytest.fixture
def streams(monkeypatch):
    """Record the waits between a simulated device's three streams, and the tokens that the host waited for."""
    with simulated("a10", 1, streams=3):
        mx.nd.ones((2, 2), ctx=mx.sim(0)).asnumpy()
        device = devices.get(mx.sim(0))
        kind = type(device.compute.streams[0])
        yield (
            counted(monkeypatch, kind, "_wait", lambda stream, token: (stream.name, token.stream.name)),
            counted(monkeypatch, kind, "finish", lambda stream, token: token.serial),
        )


def test_a_chain_stays_on_one_stream_without_waits(streams):
    waits, finished = streams
    x = mx.nd.ones((8, 8), ctx=mx.sim(0))
    x.wait_to_read()
    waits.clear()
    finished.clear()
    for _ in range(10):
        x = mx.nd.dot(x, x) * 0.1
    x.asnumpy()
    compute = [pair for pair in waits if all("compute" in name for name in pair)]
    assert compute == []
    assert len(finished) <= 2  # the host waits for the last token, not for each


def test_independent_operations_alternate_between_streams(streams):
    x = [mx.nd.ones((8, 8), ctx=mx.sim(0)) for _ in range(3)]
    mx.nd.waitall()
    y = [mx.nd.dot(each, each) for each in x]
    mx.nd.waitall()
    assert len({each.storage.marks.write.stream.name for each in y}) == 3


def test_a_stream_waits_only_once_for_another_stream(streams):
    waits, _ = streams
    a, b = (mx.nd.ones((8, 8), ctx=mx.sim(0)) for _ in range(2))
    mx.nd.waitall()
    stream: Stream = devices.get(mx.sim(0)).compute.streams[0]
    tokens = [each.storage.marks.write for each in (a, b)]
    other = next((token for token in tokens if token.stream is not stream), tokens[0])
    waits.clear()
    for _ in range(3):
        stream.wait(other)
    assert len(waits) <= 1


def test_updates_of_the_same_weights_are_grouped_once_and_run_at_their_push(monkeypatch, at_push):
    from flowmx.optimizer import grouped_updates

    checks = counted(monkeypatch, grouped_updates, "_check")
    weights, grads = arrays((64, 64), (64, 64), (64,)), arrays((64, 64), (64, 64), (64,))
    update = mx.optimizer.get_updater(mx.optimizer.Adam(learning_rate=0.5))
    expected = [each.copy() for each in weights]
    alone = [mx.optimizer.get_updater(mx.optimizer.Adam(learning_rate=0.5)) for _ in weights]
    for _ in range(3):
        update([0, 1, 2], grads, weights)
        rest()
    assert len(checks) == 3  # one for each weight
    assert at_push.count("adam_update") == 2  # the first may have to wait for its loop
    for one, weight, grad in zip(alone, expected, grads, strict=True):
        for _ in range(3):
            one(0, grad, weight)
    for weight, each in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(weight.asnumpy(), each.asnumpy())
    other = [each.copy() for each in grads]
    update([0, 1, 2], other, weights)
    assert len(checks) > 6  # other arrays are checked


def test_a_group_of_updates_holds_only_for_its_arrays_and_operators():
    weight, grad = mx.nd.ones((3,)), mx.nd.ones((3,))
    sgd = mx.optimizer.SGD(learning_rate=1.0)
    update = mx.optimizer.get_updater(sgd)
    update([0, 1], [grad, grad], [weight, mx.nd.ones((3,))])
    for other in (mx.nd.full((3,), 2), mx.nd.full((3,), 3)):
        update([0, 1], [other, grad], [weight, mx.nd.ones((3,))])
    assert weight.asnumpy().tolist() == [-5, -5, -5]
    sgd.lr = 0.5
    update([0, 1], [grad, grad], [weight, mx.nd.ones((3,))])
    assert weight.asnumpy().tolist() == [-5.5, -5.5, -5.5]
    weight.attach_grad()
    other = mx.nd.ones((3,))
    with autograd.record(), pytest.raises(mx.MXNetError, match="recorded"):
        update([0, 1], [grad, grad], [weight, other])


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("label", ["float32", "int64"])
def test_the_cross_entropy_of_small_rows_is_one_operator(label, second, monkeypatch):
    from flowmx.gluon.loss import SoftmaxCrossEntropyLoss

    rng = np.random.default_rng(0)
    logits, weight = (mx.nd.array(rng.standard_normal(shape), dtype="float64") for shape in ((6, 5), (6,)))
    classes = mx.nd.array(rng.integers(-1, 6, 6), dtype=label)  # classes out of range are clipped
    ops = recorded_names(monkeypatch)

    def gradients():
        ops.clear()
        logits.attach_grad()
        weight.attach_grad()
        with autograd.record():
            loss = total = SoftmaxCrossEntropyLoss()(logits, classes)
            names = list(ops)
            total = total * weight
            if second:
                (actual,) = autograd.grad(total.sum(), [logits], create_graph=True)
                total = (actual * actual * actual).sum()
        total.backward()
        return names, [each.asnumpy() for each in (loss, logits.grad, weight.grad)]

    names, actual = gradients()
    assert names == ["_class_cross_entropy"]
    monkeypatch.setattr(SoftmaxCrossEntropyLoss, "_can_fuse", lambda *_: False)
    names, expected = gradients()
    assert names[:2] == ["log_softmax", "pick"]
    np.testing.assert_array_equal(actual[0], expected[0])
    for one, other in zip(actual[1:], expected[1:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


SMALL = [
    *[("Activation", {"act_type": kind}, [(3, 4)]) for kind in ("relu", "sigmoid", "tanh", "softsign", "softrelu")],
    *[("_backward_Activation", {"act_type": kind}, [(3, 4)] * 2) for kind in ("relu", "sigmoid", "tanh", "softsign")],
    ("log_softmax", {}, [(3, 4)]),
    ("log_softmax", {"axis": 0}, [(3, 4)]),
    ("FullyConnected", {"num_hidden": 5}, [(3, 4), (5, 4), (5,)]),
    ("Pooling", {"kernel": (2, 2), "stride": (2, 2), "pool_type": "max"}, [(1, 2, 6, 4)]),
    ("Pooling", {"kernel": (2, 2), "pool_type": "max", "layout": "NHWC"}, [(1, 6, 4, 2)]),
    ("_backward_Pooling", {"kernel": (2, 2), "pool_type": "max"}, [(1, 2, 5, 3), (1, 2, 6, 4), (1, 2, 5, 3)]),
]


@pytest.mark.parametrize(("name", "parameters", "shapes"), SMALL)
def test_the_kernels_of_small_calls_are_bound_once(name, parameters, shapes, monkeypatch):
    op, rng = lookup(name).create(**parameters), np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    run = computations.run_on(devices.get(mx.cpu()), True)
    spec = op.spec(tuple(shapes), (np.dtype("float32"),) * len(shapes))
    if name == "_backward_Pooling":  # the output is the data's
        forward = lookup("Pooling").create(**parameters)
        forward.forward(run, [inputs[1]], [inputs[2]])
    expected, actual, turned = ([np.empty(spec.shapes[0], "float32")] for _ in range(3))
    op.forward(run, inputs, expected)
    computation = computations.forward_of_call(
        op, spec, devices.get(mx.cpu()), [(each.shape, each.dtype) for each in inputs]
    )
    lying_otherwise = [np.asfortranarray(each) for each in inputs]
    computation(run, lying_otherwise, turned)
    with monkeypatch.context() as patch:
        patch.setattr(type(op), "forward", None)
        computation(run, inputs, actual)
    np.testing.assert_allclose(actual[0], expected[0], rtol=3e-7)  # loops round exp and tanh differently
    np.testing.assert_array_equal(turned[0], actual[0])


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("kind", ["relu", "sigmoid", "tanh", "softrelu", "softsign"])
def test_a_dense_layer_and_its_activation_are_one_operator(kind, second, monkeypatch):
    layer = mx.gluon.nn.Dense(5, activation=kind, in_units=4, use_bias=kind != "relu")
    layer.initialize(mx.init.Normal(0.7))
    layer.cast("float64")
    data = mx.nd.array(np.random.default_rng(0).standard_normal((3, 4)), dtype="float64")
    ops = recorded_names(monkeypatch)

    def gradients():
        data.attach_grad()
        ops.clear()
        with autograd.record():
            out = layer(data)
            names, loss = list(ops), (out * out).sum()
            if second:
                (actual,) = autograd.grad(loss, [data], create_graph=True)
                loss = (actual * actual * actual).sum()
        loss.backward()
        grads = [param.grad() for param in layer.collect_params().values()] if not second else [layer.weight.grad()]
        return names, [each.asnumpy() for each in (out, data.grad, *grads)]

    names, actual = gradients()
    assert names == ["_dense"]
    hook = layer.act.register_forward_hook(lambda *_: None)
    names, expected = gradients()
    hook.detach()
    assert names == ["FullyConnected", "Activation"]
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    layer.hybridize()
    names, _ = gradients()
    assert "_dense" not in names


def test_an_updater_groups_the_same_weights_once(monkeypatch):
    from flowmx.optimizer import updater

    grouped = counted(monkeypatch, updater, "_groups")
    weights, grads = ([mx.nd.ones((3,)) for _ in range(3)] for _ in range(2))
    update = mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=1.0, momentum=0.5))
    for _ in range(3):
        update([0, 1, 2], grads, weights)
    assert len(grouped) == 1
    update.states[1] = mx.nd.zeros((3,))  # states are looked up at each call
    update([0, 1, 2], grads, weights)
    assert [each.asnumpy()[0] for each in weights] == [-5.125, -4.25, -5.125]
    update([0, 2, 1], grads, weights)
    update([0, 1, 2], grads, [weights[0], weights[1], mx.nd.ones((3,))])
    update.optimizer.aggregate_num = 1
    update([0, 1, 2], grads, weights)
    assert len(grouped) == 4
