"""Model parallelism: groups of a symbol on separate devices give the results of one device."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.errors import DeviceError


def network():
    with mx.AttrScope(ctx_group="first"):
        data = mx.sym.Variable("data")
        x = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=16, name="fc1"), act_type="tanh")
        x = mx.sym.BatchNorm(x, fix_gamma=False, name="norm")
    with mx.AttrScope(ctx_group="second"):
        y = mx.sym.Activation(mx.sym.FullyConnected(x, num_hidden=16, name="fc2"), act_type="relu")
        z = mx.sym.Reshape(y, shape=(-1, 4, 4))
    with mx.AttrScope(ctx_group="first"):
        z = mx.sym.sum(z, axis=2) + mx.sym.slice_axis(x, axis=1, begin=0, end=4)
    with mx.AttrScope(ctx_group="second"):
        second = mx.sym.BlockGrad(y)
    return mx.sym.Group([mx.sym.LinearRegressionOutput(z, name="out"), second])


def bound(groups, **kwargs):
    rng = np.random.default_rng(0)
    executor = network().simple_bind(mx.cpu(0), data=(8, 5), out_label=(8, 4), group2ctx=groups, **kwargs)
    for name in sorted(executor.arg_dict):
        executor.arg_dict[name][:] = rng.standard_normal(executor.arg_dict[name].shape)
    return executor


def results(executor, steps=3):
    for _ in range(steps):
        executor.forward(is_train=True)
        executor.backward()
        for name, array in executor.arg_dict.items():
            if name not in ("data", "out_label"):
                array -= 0.1 * executor.grad_dict[name].as_in_context(array.context)
    executor.forward(is_train=False)
    arrays = [*executor.outputs, *executor.grad_dict.values(), *executor.aux_dict.values()]
    return [array.asnumpy() for array in arrays]


TWO = {"first": mx.cpu(0), "second": mx.cpu(1)}


@pytest.mark.parametrize("requests", ["write", "add"])
def test_as_on_one_device(requests):
    expected = results(bound(None, grad_req=requests))
    for _ in range(20):
        split = results(bound(TWO, grad_req=requests))
        for one, other in zip(expected, split, strict=True):
            np.testing.assert_array_equal(one, other)


def test_arrays_are_where_their_group_is():
    executor = bound(TWO)
    where = {name: array.context for name, array in executor.arg_dict.items()}
    assert where["fc1_weight"] == mx.cpu(0)
    assert where["fc2_weight"] == executor.grad_dict["fc2_weight"].context == mx.cpu(1)
    assert [output.context for output in executor.outputs] == [mx.cpu(0), mx.cpu(1)]


def test_each_value_is_copied_once_to_each_device():
    nodes = bound(TWO).plan.forward
    copies = [node for node in nodes if node.op.name == "_copy_to_device"]
    assert len({node.inputs[0] for node in copies}) == len(copies) == 2


def test_an_array_on_the_wrong_device_is_refused():
    executor = bound(TWO)
    with pytest.raises(DeviceError, match="fc2_weight is on cpu"):
        network().bind(mx.cpu(0), {**executor.arg_dict, "fc2_weight": mx.nd.zeros((16, 16))},
                       aux_states=executor.aux_dict, group2ctx=TWO)  # fmt: skip


def test_an_error_on_one_device_reaches_the_outputs_of_the_other():
    executor = bound(TWO)
    executor.forward(is_train=True)[0].wait_to_read()
    (segments,) = executor._modes[True]._segments.values()

    def fail(run, inputs, outputs):
        raise ZeroDivisionError("planted")

    second = next(segment for segment in segments if segment.device.context == mx.cpu(1) and segment.part.steps)
    second.part.steps[-1] = second.part.steps[-1]._replace(forward=fail)
    executor.forward(is_train=True)
    executor.backward()
    for array in (executor.outputs[0], executor.grad_dict["fc1_weight"]):
        with pytest.raises(ZeroDivisionError, match="planted"):
            array.asnumpy()


@pytest.mark.parametrize("contexts", [[mx.cpu(0)], [mx.cpu(0), mx.cpu(2)]])
async def test_a_module_trains_on_groups_as_on_one_device(contexts):
    rng = np.random.default_rng(0)
    data = mx.io.NDArrayIter(rng.standard_normal((32, 5)), rng.standard_normal((32, 4)), 8, label_name="out_label")

    async def trained(groups):
        mx.random.seed(0)
        module = mx.mod.Module(
            network()[0], label_names=["out_label"], context=contexts, group2ctxs=groups
        )  # fmt: skip
        data.reset()
        await module.fit(data, num_epoch=2, eval_metric="mse", optimizer_params={"learning_rate": 0.1})
        return {name: array.asnumpy() for part in module.get_params() for name, array in part.items()}

    expected = await trained(None)
    others = [mx.cpu(1), mx.cpu(3)][: len(contexts)]
    for groups in ({"second": others}, [{"second": other} for other in others]):
        parameters = await trained(groups)
        for name, value in expected.items():
            np.testing.assert_array_equal(parameters[name], value)


def split():
    a, b, c = map(mx.sym.Variable, "abc")
    with mx.AttrScope(ctx_group="first"):
        net = (a + b) * 3
    with mx.AttrScope(ctx_group="second"):
        net = net + c
    return net * 2


@pytest.mark.parametrize("where", [(1, 1, 2), (0, 0, 2), (3, 3, 3), (0, 0, 0)])
def test_variables_without_a_group_are_where_their_arrays_are(where):
    groups = {"first": mx.cpu(1), "second": mx.cpu(2)}
    arrays = [mx.nd.ones(2, ctx=mx.cpu(i)) for i in where]
    gradients = [mx.nd.zeros(2, ctx=mx.cpu(i)) for i in where]
    executor = split().bind(mx.cpu(0), arrays, gradients, group2ctx=groups)
    executor.forward(is_train=True)
    executor.backward()
    assert executor.outputs[0].asnumpy().tolist() == [14, 14]
    assert executor.outputs[0].context == mx.cpu(2), "an operator without a group is with its first input"
    assert [each.asnumpy().tolist() for each in executor.grad_arrays] == [[6, 6], [6, 6], [2, 2]]


def test_variables_without_a_group_are_made_with_their_reader():
    groups = {"first": mx.cpu(1), "second": mx.cpu(2)}
    executor = split().simple_bind(mx.cpu(0), a=2, b=2, c=2, group2ctx=groups)
    assert [each.context for each in executor.arg_arrays] == [mx.cpu(1), mx.cpu(1), mx.cpu(2)]


def test_one_device_of_a_group_stands_for_all_of_a_modules():
    module = mx.mod.Module(
        split(),
        ["a", "b"],
        ["c"],
        context=[mx.cpu(0), mx.cpu(1)],
        group2ctxs={"first": mx.cpu(2), "second": [mx.cpu(3)]},
    )
    module.bind([("a", (2, 3)), ("b", (2, 3))], [("c", (2, 3))])
    module.init_params()
    module.forward(mx.io.DataBatch([mx.nd.ones((2, 3))] * 2, [mx.nd.ones((2, 3))]))
    assert module.get_outputs()[0].asnumpy().tolist() == [[14] * 3] * 2
