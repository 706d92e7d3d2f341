"""The NaN watch stops at the first NaN or infinity, and names the operator, layer and step."""

import asyncio
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd, gluon, settings
from flowmx.engine.runtime import engine
from flowmx.gluon import nn
from flowmx.observability import safety
from flowmx.observability.safety import NonFiniteError, stop_at_nan
from flowmx.ops.math.finite import all_finite, count_nonfinite


@pytest.fixture(autouse=True)
def forget_failures():
    """Forget the failures of each test, so that they do not affect the next one."""
    yield
    engine.wait_all(throw=False)
    engine.failures.clear()


class Grows(gluon.HybridBlock):
    """A layer whose exponential overflows float32 where the input is 1."""

    def hybrid_forward(self, F, x):
        return F.exp(x * 100, name="grow") + 1


def network(hybridize):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(3, in_units=2), Grows(), nn.Dense(1, in_units=3))
    net.initialize(mx.init.One())
    if hybridize:
        net.hybridize()
    return net


@pytest.mark.parametrize("hybridize", [False, True])
def test_names_operator_layer_and_step(hybridize):
    net = network(hybridize)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.0})
    first = safety.current_step()

    def train():
        for step in range(5):
            with autograd.record():
                loss = net(mx.nd.full((4, 2), 1 if step == 3 else 0)).sum()
            loss.backward()
            trainer.step(4)
        loss.wait_to_read()

    with pytest.raises(NonFiniteError, match="operator exp in layer") as caught, stop_at_nan():
        train()
    actual = caught.value.finding
    assert (actual.operator, actual.step, actual.is_backward) == ("exp", first + 3, False)
    assert "net_grows0" in actual.layer
    assert (actual.nans, actual.infinities, actual.inputs) == (0, 12, ())
    assert "test_safety.py" in actual.place


def test_the_trainer_stops_without_a_wait():
    net = network(hybridize=True)
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    with stop_at_nan():
        with autograd.record():
            loss = net(mx.nd.ones((4, 2))).sum()
        loss.backward()
        mx.engine.engine.wait_all(throw=False)
        with pytest.raises(NonFiniteError, match="operator exp"):
            trainer.step(4)


@pytest.mark.parametrize("hybridize", [False, True])
def test_names_the_backward_pass(hybridize):
    """The square root of 0 is 0, and its gradient infinite."""

    class Root(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.sqrt(x, name="root")

    net = Root(prefix="root_")
    if hybridize:
        net.hybridize()
    x = mx.nd.zeros((2, 2))
    x.attach_grad()

    def differentiate():
        with autograd.record():
            y = net(x).sum()
        y.backward()
        x.grad.wait_to_read()

    with pytest.raises(NonFiniteError) as caught, stop_at_nan():
        differentiate()
    assert caught.value.finding.is_backward
    assert "root" in caught.value.finding.layer
    assert "root" in caught.value.finding.forward if hybridize else caught.value.finding.forward == "sqrt"
    assert "F.sqrt" in caught.value.finding.forward_place


def _scaled_root(x):
    y = mx.nd.sqrt(x)  # the forward line
    return (y * 0).sum()


class _NaNBackward(autograd.Function):
    def forward(self, x):
        return x * 1

    def backward(self, dy):
        return dy * np.nan


def _custom(x):
    return _NaNBackward()(x)  # the forward line


class _NaNOperator(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * np.nan)


@mx.operator.register("nan_backward")
class _NaNProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, in_shapes, in_dtypes):
        return _NaNOperator()


def _operator(x):
    return mx.nd.Custom(x, op_type="nan_backward")  # the forward line


def _shared(x):
    y = x * 1  # the forward line
    return mx.nd.sqrt(y) - mx.nd.sqrt(y)


def _numpy(x):
    y = mx.np.cbrt(x.as_np_ndarray())  # the forward line
    return (y * 0).sum()


@pytest.mark.parametrize(
    ("function", "operator", "forward", "infinity"),
    [(_scaled_root, "broadcast_div", "sqrt", True), (_custom, "_mul_scalar", "_NaNBackward", True),
     (_operator, "_mul_scalar", "Custom", True),
     (_shared, "broadcast_add", "_mul_scalar", False), (_numpy, "broadcast_div", "cbrt", True)],
)  # fmt: skip
@pytest.mark.parametrize("is_forward_watched", [True, False])
def test_names_the_forward_operator_of_a_gradient_and_its_line(
    function, operator, forward, infinity, is_forward_watched
):
    """The error was enqueued at the line of ``backward``, but its cause is a line of the forward pass."""
    x = mx.nd.array([0.0, 1])
    x.attach_grad()

    with stop_at_nan(infinity) if is_forward_watched else nullcontext(), autograd.record():
        y = function(x)

    def differentiate():
        y.backward()
        x.grad.wait_to_read()

    with pytest.raises(NonFiniteError) as caught, stop_at_nan(infinity):
        differentiate()
    finding = caught.value.finding
    assert (finding.operator, finding.forward, finding.is_backward) == (operator, forward, True)
    assert finding.forward_place.endswith("# the forward line") and f"in {function.__name__}:" in finding.forward_place
    assert f"this is the gradient of {forward}, called at {finding.forward_place}" in str(caught.value)


def test_findings_of_the_forward_pass_have_no_gradient():
    with pytest.raises(NonFiniteError) as caught, stop_at_nan():
        mx.nd.log(mx.nd.zeros(2)).wait_to_read()
    assert (caught.value.finding.forward, caught.value.finding.forward_place) == (None, None)
    assert "this is the gradient" not in str(caught.value)


def test_executors_and_modules():
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
    net = mx.sym.SoftmaxOutput(mx.sym.log(x, name="logs"), name="softmax")
    module = mx.mod.Module(net)
    module.bind([("data", (2, 4))], [("softmax_label", (2,))])
    module.init_params(mx.init.One())
    module.init_optimizer(optimizer_params={"learning_rate": 0.0})
    batch = mx.io.DataBatch([mx.nd.ones((2, 4))], [mx.nd.zeros(2)])
    negative = mx.io.DataBatch([-mx.nd.ones((2, 4))], [mx.nd.zeros(2)])
    first = safety.current_step()

    def train():
        for each in (batch, negative):
            module.forward_backward(each)
            module.update()
        module.get_outputs()[0].wait_to_read()

    with pytest.raises(NonFiniteError) as caught, stop_at_nan():
        train()
    actual = caught.value.finding
    assert (actual.operator, actual.layer, actual.step, actual.nans) == ("log", "logs", first + 1, 6)


def test_in_the_middle_of_a_fused_loop():
    """Several operators in one loop over memory: the culprit is found, although inputs were overwritten."""
    x = mx.sym.var("x")
    y = mx.sym.sqrt(mx.sym.log(mx.sym.exp(x, name="up") - 2, name="down") + 1, name="last") * 2
    bound = y.bind(mx.cpu(), {"x": mx.nd.zeros((64, 64))})
    assert any(step.node.op.name == "_chain" for step in bound._mode(False).runner.forward)
    with pytest.raises(NonFiniteError) as caught, stop_at_nan():
        bound.forward()[0].wait_to_read()
    assert (caught.value.finding.operator, caught.value.finding.layer) == ("log", "down")


class Refusing(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        raise KeyError("mine")


@mx.operator.register("refusing under a watch")
class RefusingProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, in_shapes, in_dtypes):
        return Refusing()


def test_outputs_that_are_variables_are_allowed():
    """Nothing is computed: the outputs are the inputs."""
    x = mx.sym.var("x")
    bound = mx.sym.Group([x, mx.sym.identity(x), x * 0]).bind(mx.cpu(), {"x": mx.nd.array([np.nan, 1])})
    with pytest.raises(NonFiniteError) as caught, stop_at_nan():
        mx.nd.concat(*bound.forward(), dim=0).wait_to_read()
    assert caught.value.finding.operator == "_mul_scalar"
    alone = mx.sym.Group([x, mx.sym.identity(x)]).bind(mx.cpu(), {"x": mx.nd.array([np.nan, 1])})
    with stop_at_nan() as watch:
        actual = alone.forward()
        for each in actual:
            assert np.isnan(each.asnumpy()[0])
    assert watch.finding is None


def test_other_errors_still_name_their_node():
    x = mx.sym.Custom(mx.sym.var("x"), op_type="refusing under a watch", name="culprit")
    bound = mx.sym.contrib.foreach(lambda d, s: (d * 2, s), x, [])[0].bind(mx.cpu(), {"x": mx.nd.ones((2, 1))})
    with pytest.raises(KeyError, match="mine") as caught, stop_at_nan():
        bound.forward()[0].wait_to_read()
    assert "in node 'culprit'" in "\n".join(caught.value.__notes__)


def test_inside_loops_of_a_graph():
    out, _ = mx.sym.contrib.foreach(lambda d, s: (mx.sym.log(d, name="inner"), s), mx.sym.var("x"), [])
    bound = out.bind(mx.cpu(), {"x": mx.nd.array([[1.0], [-1.0]])})
    with pytest.raises(NonFiniteError, match="operator log in layer 'inner'"), stop_at_nan():
        bound.forward()[0].wait_to_read()


def test_an_update_that_diverges():
    net = nn.Dense(1, in_units=1, use_bias=False, prefix="one_")
    net.initialize(mx.init.One())
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e38})

    def train():
        for _ in range(3):
            with autograd.record():
                loss = (net(mx.nd.ones((1, 1))) * 100).sum()
            loss.backward()
            trainer.step(1)
        net.weight.data().wait_to_read()

    with pytest.raises(NonFiniteError, match="operator sgd_update"), stop_at_nan():
        train()


def test_masks_are_allowed():
    with stop_at_nan():
        mask = mx.nd.full((2, 3), -np.inf)
        scores = mx.nd.where(mx.nd.array([[1, 0, 1], [1, 1, 1]]), mx.nd.ones((2, 3)), mask)
        weights = mx.nd.softmax(scores)
        assert weights.asnumpy()[0, 1] == 0
        with pytest.raises(NonFiniteError, match="its inputs had such values in input 0"):
            mx.nd.softmax(mask).asnumpy()  # nothing but the mask: NaN


def test_nan_alone():
    with stop_at_nan(infinity=False):
        big = mx.nd.exp(mx.nd.full(3, 100))
        assert np.isinf(big.asnumpy()).all()
        with pytest.raises(NonFiniteError, match="3 NaN values"):
            (big - big).asnumpy()


def test_data_that_contained_nan_before():
    with stop_at_nan(), pytest.raises(NonFiniteError, match="its inputs had such values in input 0"):
        (mx.nd.array([1, np.nan]) + 1).asnumpy()


def test_only_its_scope_is_watched():
    async def other():
        return mx.nd.log(mx.nd.zeros(2))

    async def main():
        with stop_at_nan():
            return await asyncio.create_task(other())

    assert np.isinf(mx.nd.log(mx.nd.zeros(2)).asnumpy()).all()
    with pytest.raises(NonFiniteError):
        asyncio.run(main()).asnumpy()  # a task that is begun inside is inside

    async def apart():
        inside = asyncio.Event()

        async def watched():
            with stop_at_nan():
                inside.set()
                await done.wait()

        done = asyncio.Event()
        task = asyncio.create_task(watched())
        await inside.wait()
        y = await other()
        await y
        done.set()
        await task
        return y

    assert np.isinf(asyncio.run(apart()).asnumpy()).all()


def test_off_costs_nothing():
    assert "values" not in engine.watches
    with stop_at_nan():
        assert "values" in engine.watches
        with stop_at_nan():
            pass
        assert "values" in engine.watches
    assert "values" not in engine.watches
    assert mx.engine.origin.layer_name_users == 0


def test_by_setting():
    program = (
        "import flowmx as mx\n"
        "a = mx.nd.zeros(3)\n"
        "a.wait_to_read()\n"
        "try:\n"
        "    mx.nd.log(a).asnumpy()\n"
        "except mx.anomaly.NonFiniteError as error:\n"
        "    print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], env={"FLOWMX_STOP_AT_NAN": "1"}, capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("operator log computed 3 infinite values in the forward pass of step 1")


def test_settings_may_change():
    with settings.override(stop_at_nan=True):
        engine.configure(settings.get())
        with pytest.raises(NonFiniteError):
            mx.nd.log(mx.nd.zeros(2)).asnumpy()
    engine.configure(settings.get())
    assert np.isinf(mx.nd.log(mx.nd.zeros(2)).asnumpy()).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32"])
def test_looking_through_arrays(dtype):
    kind = mx.nd.array([0], dtype=dtype).asnumpy().dtype
    array = np.linspace(-6e4, 6e4, 24).reshape(4, 6).astype(kind)
    assert all_finite(np, array) and all_finite(np, array.T[::2]) and all_finite(np, array[:0])
    if kind.kind != "i":
        for at, bad in (((0, 0), np.inf), ((3, 5), np.nan), ((2, 4), -np.inf)):
            spoilt = array.copy()
            spoilt[at] = bad
            assert not all_finite(np, spoilt) and not all_finite(np, spoilt.T)
            assert count_nonfinite(np, spoilt) == ((1, 0) if np.isnan(bad) else (0, 1))


def test_sparse_arrays_are_looked_at():
    rows = mx.nd.array([[1, 2], [0, 0]]).tostype("row_sparse")
    with stop_at_nan():
        assert (rows * 2).asnumpy().tolist() == [[2, 4], [0, 0]]
        with pytest.raises(NonFiniteError, match="inf"):
            (rows * np.inf).asnumpy()


def test_a_watch_that_is_never_entered_warns():
    with pytest.warns(UserWarning, match="stop_at_nan\\(\\) watches nothing without `with`"):
        stop_at_nan()


def test_a_watch_is_a_decorator():
    @stop_at_nan()
    def function(x):
        return mx.nd.log(x).asnumpy()

    assert function(mx.nd.ones((2,))).tolist() == [0, 0]
    with pytest.raises(NonFiniteError):
        function(-mx.nd.ones((2,)))
