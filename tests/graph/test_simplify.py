"""Simplified graphs give bitwise the same results as the plain ones, and necessary operators stay."""

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowmx as mx
from flowmx.graph import compiler, infer
from flowmx.graph.passes.common_subexpressions import merge_common
from flowmx.graph.passes.constant_folding import fold_constants
from flowmx.graph.passes.identities import drop_identities
from flowmx.graph.passes.placement import place
from flowmx.ops.compiled.constant import Constant

SIMPLIFYING = [place, fold_constants, drop_identities, merge_common]
SHAPE = (3, 4)
s: Any = mx.sym


@pytest.fixture
def passes(monkeypatch):
    """Return a function that sets the compiler's passes; initially the tested ones."""

    def put(new_passes):
        monkeypatch.setattr(compiler, "PASSES", new_passes)

    put(SIMPLIFYING)
    return put


def same_bits(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def filled(net, seed=0, **shapes):
    """Return an executor with content in which every special value occurs."""
    rng = np.random.default_rng(seed)
    executor = net.simple_bind(mx.cpu(), **shapes)
    for name in sorted(executor.arg_dict):
        values = rng.standard_normal(executor.arg_dict[name].shape).astype(executor.arg_dict[name].dtype)
        special = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0], values.shape)
        executor.arg_dict[name][:] = np.where(rng.random(values.shape) < 0.2, special, values)
    for name in sorted(executor.aux_dict):
        executor.aux_dict[name][:] = rng.random(executor.aux_dict[name].shape) + 0.5
    return executor


def results(net, **shapes):
    """Return all results of training and prediction."""
    executor = filled(net, **shapes)
    mx.random.seed(7)
    rng = np.random.default_rng(1)
    heads = [mx.nd.array(rng.standard_normal(out.shape), dtype=out.dtype) for out in executor.outputs]
    result = [out.asnumpy() for out in executor.forward(is_train=True)]
    executor.backward(heads)
    result += [grad.asnumpy() for grad in executor.grad_dict.values()]
    result += [state.asnumpy() for state in executor.aux_dict.values()]
    result += [out.asnumpy() for out in executor.forward(is_train=False)]
    return result, executor


def assert_same_without(passes, net, **shapes):
    """Compare with the results of the unsimplified graph; return the executor of the simplified one."""
    passes([])
    expected, _ = results(net, **shapes)
    passes(SIMPLIFYING)
    result, executor = results(net, **shapes)
    for position, (one, other) in enumerate(zip(expected, result, strict=True)):
        assert same_bits(one, other), f"result {position}: {one} {other}"
    return executor


def ops(executor, train=True):
    plan = executor._mode(train).plan
    return [node.op.name for node in (*plan.once, *plan.forward, *plan.backward)]


def x_and(**kwargs):
    return s.Variable("x", **kwargs)


# -- random graphs -----------------------------------------------------------------------------------------

UNARY = [
    s.identity, s.BlockGrad, s.make_loss, s.relu, s.negative, s.tanh, s.zeros_like, s.ones_like,
    lambda x: x + 0, lambda x: x - 0, lambda x: x * 1, lambda x: x / 1, lambda x: x**1, lambda x: x**2,
    lambda x: x + -0.0, lambda x: x - -0.0, lambda x: 0.5 * x,
    lambda x: s.Reshape(s.Reshape(x, shape=(4, 3)), shape=SHAPE),
    lambda x: s.transpose(s.Reshape(x, shape=(4, 3))),
    lambda x: s.transpose(s.transpose(x)), lambda x: s.SwapAxis(s.transpose(x), dim1=0, dim2=1),
    lambda x: s.squeeze(s.expand_dims(x, axis=1)), lambda x: s.Cast(s.Cast(x, dtype="float64"), dtype="float32"),
    lambda x: s.Cast(s.Cast(x, dtype="float16"), dtype="float32"), lambda x: s.Cast(x, dtype="float32"),
    lambda x: s.Concat(x, dim=0), lambda x: s.add_n(x), lambda x: s.slice_axis(x, axis=0, begin=0, end=None),
    lambda x: s.slice(x, begin=(0, 0), end=SHAPE),
    lambda x: s.slice(x, begin=(None, None), end=(None, None), step=(-1, 1)),
    lambda x: s.Dropout(x, p=0.0), lambda x: s.Dropout(x, p=0.5), lambda x: s.Dropout(x, p=0.5, mode="always"),
    lambda x: s.broadcast_to(x, shape=SHAPE), lambda x: s.broadcast_to(s.sum(x, axis=1, keepdims=True), shape=SHAPE),
    s.BatchNorm, lambda x: s.FullyConnected(x, num_hidden=4, no_bias=True),
]  # fmt: skip
BINARY = [
    lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / b, s.broadcast_mul, s.broadcast_add,
    s.broadcast_sub, s.maximum, lambda a, b: s.slice_axis(s.Concat(a, b, dim=1), axis=1, begin=2, end=6),
    s.reshape_like, s.broadcast_like,
]  # fmt: skip
LEAVES = [
    lambda: s.Variable("x", shape=SHAPE), lambda: s.Variable("y", shape=SHAPE), lambda: s.zeros(shape=SHAPE),
    lambda: s.ones(shape=SHAPE), lambda: s.full(shape=SHAPE, val=-0.0),
    lambda: s.Reshape(s.arange(0, 12), shape=SHAPE), lambda: s.full(shape=SHAPE, val=3.5),
]  # fmt: skip
PROGRAMS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(UNARY), st.integers(0, 30)),
        st.tuples(st.sampled_from(BINARY), st.integers(0, 30), st.integers(0, 30)),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


def symbol_of(program, outputs):
    """Return the network of a program: each statement uses values before it, counted from the newest."""
    variables = [leaf() for leaf in LEAVES]
    values = [*variables[2:], *variables[:2]]
    for function, *operands in program:
        values.append(function(*(values[-1 - index % len(values)] for index in operands)))
    anchor = variables[0] + variables[1]  # so that something is differentiable
    return s.Group([anchor, *(values[-1 - index % len(values)] for index in outputs)])


@settings(max_examples=120)
@given(program=PROGRAMS, outputs=st.lists(st.integers(0, 30), min_size=1, max_size=3))
def test_random_graphs_give_the_same_bits(program, outputs):
    with pytest.MonkeyPatch.context() as patch:
        assert_same_without(
            lambda new_passes: patch.setattr(compiler, "PASSES", new_passes),
            symbol_of(program, outputs),
            x=SHAPE,
            y=SHAPE,
        )


@pytest.mark.parametrize(
    ("layer", "like"),
    [
        (s.BatchNorm, s.reshape_like),
        (s.BatchNorm, lambda x, of: x + s.zeros_like(of)),
        (lambda x: s.Dropout(x, p=0.5), s.reshape_like),
    ],
    ids=["BatchNorm", "BatchNorm, zeros_like", "Dropout"],
)
def test_a_shape_only_operator_keeps_its_side_effects(passes, layer, like):
    x = s.Variable("x")
    drawn = s.Dropout(like(x, layer(x * 2)), p=0.5)  # after the layer's own draw
    assert_same_without(passes, drawn, x=SHAPE)


# -- constants ---------------------------------------------------------------------------------------------


def test_constant_expressions_are_computed_once(passes):
    table = s.exp(s.Reshape(s.arange(0, 12), shape=SHAPE)) * s.full(shape=(1,), val=2).broadcast_to(shape=SHAPE)
    executor = assert_same_without(passes, x_and() + table, x=SHAPE)
    assert ops(executor) == ["_constant", "elemwise_add"]
    (constant,) = executor.plan.once
    calls = []
    (segments,) = [each for key, each in executor._modes[True]._segments.items() if key == (True, False)]
    step = segments[0].part.once[0]
    segments[0].part.once[0] = step._replace(forward=lambda *args: calls.append(step.forward(*args)))
    for _ in range(3):
        executor.forward(is_train=True)[0].wait_to_read()
    assert not calls, "its result is kept from run to run"
    assert constant.op.value.flags.writeable is False


def test_large_constants_stay_nodes(passes):
    executor = assert_same_without(passes, x_and() + s.ones(shape=(200, 200)) * 2, x=(200, 200))
    assert ops(executor) == ["_ones", "_mul_scalar", "elemwise_add"]
    assert not executor.plan.separate


def test_a_small_constant_of_a_large_one_is_folded(passes):
    executor = assert_same_without(passes, s.broadcast_add(x_and(), s.sum(s.ones(shape=(200, 200)))), x=SHAPE)
    assert ops(executor)[:2] == ["_constant", "broadcast_add"]


def test_equal_constants_are_one(passes):
    executor = assert_same_without(passes, (x_and() + s.arange(0, 4)) * s.arange(0, 4), x=(4,))
    assert ops(executor).count("_constant") == 1
    x = x_and()
    net = s.broadcast_add(x, s.zeros(shape=(1,))) * s.broadcast_add(x, s.full(shape=(1,), val=-0.0))
    assert_same_without(passes, net, x=(4,))


@pytest.mark.parametrize("apply", [s.broadcast_like, s.reshape_like, lambda x, y: x + s.ones_like(y)])
def test_shape_only_values_are_not_computed(passes, apply):
    x = x_and()
    executor = assert_same_without(passes, apply(s.tanh(x), x * 3), x=(200, 200))
    assert "_mul_scalar" not in ops(executor, False)


@pytest.mark.parametrize("name", ["zeros", "ones", "arange"])
def test_a_constant_that_is_an_output_is_written_by_each_run(passes, name):
    constant = {"zeros": s.zeros(shape=(4,)), "ones": s.ones(shape=(4,)), "arange": s.arange(0, 4)}[name]
    x = x_and()
    net = s.Group([s.identity(constant), x * 2, constant + x])
    executor = assert_same_without(passes, net, x=(4,))
    expected = executor.outputs[0].asnumpy()
    executor.outputs[0][:] = 5
    executor.forward()
    np.testing.assert_array_equal(executor.outputs[0].asnumpy(), expected)


def test_random_numbers_and_user_code_are_never_constants(passes):
    executor = filled(x_and() + s.random.uniform(shape=(4,)), x=(4,))
    one, other = executor.forward()[0].asnumpy(), executor.forward()[0].asnumpy()
    assert not same_bits(one, other)
    assert "_constant" not in ops(executor)


def test_failing_constants_fail_at_run_time(passes, monkeypatch):
    op = mx.ops.lookup("_eye")

    def fail(self, run, inputs, outputs):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(op, "forward", fail)
    executor = filled(s.dot(x_and(), s.eye(4)), x=SHAPE)
    with pytest.raises(ZeroDivisionError, match="planted"):
        executor.forward()[0].asnumpy()


def test_constants_on_several_devices(passes):
    with mx.AttrScope(ctx_group="a"):
        x = x_and() + s.arange(0, 4)
    with mx.AttrScope(ctx_group="b"):
        y = x * s.arange(1, 5) + s.arange(0, 4)
    executor = s.Group([x, y]).simple_bind(mx.cpu(), x=(4,), group2ctx={"a": mx.cpu(0), "b": mx.cpu(1)})
    executor.arg_dict["x"][:] = 1
    for _ in range(2):
        one, other = executor.forward()
        np.testing.assert_array_equal(one.asnumpy(), [1, 2, 3, 4])
        np.testing.assert_array_equal(other.asnumpy(), [1, 5, 11, 19])
    assert ops(executor, False).count("_constant") == 3, "one for each device that reads it"


def test_constants_are_equal_by_their_bytes():
    def of(*numbers):
        return Constant(np.array(numbers, np.float32))

    assert of(1, 2) == of(1, 2)
    assert hash(of(1, 2)) == hash(of(1, 2))
    assert of(np.nan) == of(np.nan)
    assert of(0.0) != of(-0.0)
    assert of(1, 2) != Constant(np.array([1, 2], np.int32))
    assert of(1) != "1"
    assert (of(2, 2).number, of(1, 2).number, of().number) == (2, None, None)
    assert repr(of(1, 2)) == "_constant((2,), float32)"


# -- common subexpressions ---------------------------------------------------------------------------------

NORM = [s.Variable(name) for name in ("gamma", "beta", "mean", "var")]


def test_equal_expressions_are_computed_once(passes):
    x = x_and()
    executor = assert_same_without(passes, s.exp(x * 2) + s.exp(x * 2) * s.exp(x * 3), x=SHAPE)
    assert ops(executor, False).count("exp") == 2
    assert any(" equals " in note for note in executor.plan.graph.notes)


def test_two_outputs_may_be_one_value(passes):
    x = x_and()
    net = s.Group([s.exp(x), s.exp(x), s.exp(s.identity(x)), s.identity(x), x])
    executor = assert_same_without(passes, net, x=SHAPE)
    assert ops(executor, False) == ["exp"]
    assert len({id(output.storage) for output in executor.outputs}) == 5
    executor.outputs[0][:] = 0
    assert executor.outputs[1].asnumpy().any()


def test_gradients_may_be_one_value(passes):
    net = s.Variable("x") + s.Variable("y")
    for request in ("write", "add"):
        executor = net.simple_bind(mx.cpu(), grad_req=request, x=SHAPE, y=SHAPE)
        for _ in range(2):
            executor.forward_backward()
        expected = 1 if request == "write" else 2
        for grad in executor.grad_dict.values():
            np.testing.assert_array_equal(grad.asnumpy(), np.full(SHAPE, expected))


@pytest.mark.parametrize(
    ("apply", "train", "count"),
    [
        (lambda x: s.Dropout(x, p=0.5), True, 2),
        (lambda x: s.Dropout(x, p=0.5, mode="always"), False, 2),
        (lambda x: s.LeakyReLU(x, act_type="rrelu")[0], True, 2),
        (lambda x: s.LeakyReLU(x, act_type="rrelu")[0], False, 1),
        (lambda x: s.random.uniform(shape=SHAPE) + x, False, 2),
        (lambda x: s.BatchNorm(x, *NORM), True, 2),
        (lambda x: s.BatchNorm(x, *NORM), False, 1),
        (lambda x: s.sort(x, axis=0), False, 1),
        (lambda x: s._plus_scalar(x, scalar=0.0), False, 1),
    ],
)
def test_operators_that_draw_or_write_are_never_merged(passes, apply, train, count):
    x = x_and()
    net = apply(x) * 2 + apply(x)
    executor = assert_same_without(passes, net, x=SHAPE)
    first = next(node.op.name for node in net.get_internals().nodes() if node.op is not None)
    forward = executor._mode(train).plan.forward
    assert [node.op.name for node in forward].count(first) == count


def test_user_code_is_never_merged(passes):
    class Counting(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            calls.append(1)
            self.assign(out_data[0], req[0], in_data[0] * 2)

    @mx.operator.register("counting_for_simplify")
    class Prop(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):
            return Counting()

    calls = []
    x = x_and()
    net = s.Custom(x, op_type="counting_for_simplify") + s.Custom(x, op_type="counting_for_simplify")
    executor = net.simple_bind(mx.cpu(), grad_req="null", x=SHAPE)
    executor.forward()[0].wait_to_read()
    assert len(calls) == 2


def test_parameters_that_differ_in_sign_are_not_merged(passes):
    x = x_and()
    assert_same_without(
        passes, s.Group([1 / s._plus_scalar(x, scalar=0.0), 1 / s._plus_scalar(x, scalar=-0.0)]), x=SHAPE
    )


def test_a_large_value_is_not_kept_for_the_backward_pass(passes):
    x = x_and()
    net = s.sum(s.sigmoid(x) * 0.5) + s.sum(s.Activation(x, act_type="softsign"))
    plan = assert_same_without(passes, net, x=(200, 200)).plan
    forward = set(plan.forward)
    read = {entry.node.op.name for node in plan.backward for entry in node.inputs if entry.node in forward}
    passes([])
    plan = filled(net, x=(200, 200)).plan
    assert read <= {e.node.op.name for node in plan.backward for e in node.inputs if e.node.op is not None}


def test_a_large_value_is_computed_once_in_the_forward_pass(passes):
    x = x_and()
    executor = assert_same_without(passes, s.sigmoid(x) * 0.5 + s.sigmoid(x) * 2, x=(200, 200))
    for train in (True, False):  # without a backward pass, too, for which it would be kept anyway
        forward = executor._mode(train).plan.forward
        assert [node.op.name for node in forward].count("sigmoid") == 1


def test_reads_before_and_after_a_write_are_not_merged(passes):
    mean = s.Variable("norm_moving_mean", shape=(4,))
    norm = s.BatchNorm(x_and(), moving_mean=mean, name="norm")
    net = s.Group([s.exp(mean), norm, s.broadcast_add(s.exp(mean), s.sum(norm)), s.identity(mean)])
    passes([])
    before = ops(filled(net, x=SHAPE)).count("exp")
    passes(SIMPLIFYING)
    executor = filled(net, x=SHAPE)
    assert ops(executor).count("exp") == before
    assert "_copy" in ops(executor)


# -- identities --------------------------------------------------------------------------------------------

LEFT_OUT = {
    "identity": lambda x: s.identity(x),
    "BlockGrad": lambda x: s.BlockGrad(x),
    "make_loss": lambda x: s.make_loss(x),
    "MakeLoss": lambda x: s.MakeLoss(x),
    "x - 0": lambda x: x - 0.0,
    "x + -0": lambda x: x + -0.0,
    "x * 1": lambda x: x * 1,
    "x / 1": lambda x: x / 1,
    "x ** 1": lambda x: x**1,
    "x * ones": lambda x: x * s.ones(shape=(2, 3, 4)),
    "large ones": lambda x: s.broadcast_mul(x, s.Reshape(s.ones(shape=(1,)), shape=(1, 1, 1))),
    "ones * x": lambda x: s.broadcast_mul(s.ones_like(x), x),
    "x - zeros": lambda x: s.broadcast_sub(x, s.zeros(shape=(1,))),
    "x / ones": lambda x: x / s.ones_like(x),
    "same shape": lambda x: s.Reshape(x, shape=(0, -1, 4)),
    "there and back": lambda x: s.Reshape(s.Reshape(x, shape=(-1,)), shape=(2, 3, 4)),
    "expand, squeeze": lambda x: s.squeeze(s.expand_dims(x, axis=1), axis=(1,)),
    "Flatten, reshape_like": lambda x: s.reshape_like(s.Flatten(x), x),
    "same order": lambda x: s.transpose(x, axes=(0, 1, 2)),
    "order and back": lambda x: s.transpose(s.transpose(x, axes=(1, 2, 0)), axes=(2, 0, 1)),
    "three turns": lambda x: s.transpose(s.transpose(s.transpose(x, axes=(1, 2, 0)), axes=(1, 2, 0)), axes=(1, 2, 0)),
    "swapped twice": lambda x: s.SwapAxis(s.SwapAxis(x, dim1=0, dim2=2), dim1=0, dim2=2),
    "same dtype": lambda x: s.Cast(x, dtype="float32"),
    "wider and back": lambda x: s.Cast(s.Cast(x, dtype="float64"), dtype="float32"),
    "all of it": lambda x: s.slice(x, begin=(0, 0, 0), end=(2, 3, 4)),
    "all of an axis": lambda x: s.slice_axis(x, axis=2, begin=0, end=4),
    "Concat of one": lambda x: s.Concat(x, dim=1),
    "add_n of one": lambda x: s.add_n(x),
    "one part": lambda x: s.SliceChannel(x, num_outputs=1),
    "one tile": lambda x: s.tile(x, reps=(1, 1, 1)),
    "no padding": lambda x: s.Pad(s.expand_dims(x, axis=0), mode="constant", pad_width=(0,) * 8).reshape((2, 3, 4)),
    "no mask": lambda x: s.SequenceMask(x),
    "drops nothing": lambda x: s.Dropout(x, p=0.0),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_OUT)
def test_operators_without_effect_are_removed(passes, name):
    x = x_and()
    executor = assert_same_without(passes, s.tanh(LEFT_OUT[name](s.negative(x))), x=(2, 3, 4))
    assert ops(executor, False) == ["negative", "tanh"]
    assert any("is removed" in note for note in executor._mode(False).plan.graph.notes)


STAYS = {
    "x + 0": lambda x: s._plus_scalar(x, scalar=0.0),
    "x - -0": lambda x: s._minus_scalar(x, scalar=-0.0),
    "0 - x": lambda x: s.zeros_like(x) - x,
    "x + zeros": lambda x: x + s.zeros_like(x),
    "1 / x": lambda x: s.ones_like(x) / x,
    "x * 0": lambda x: x * 0,
    "backwards": lambda x: s.slice(x, begin=(None,), end=(None,), step=(-1,)),
    "narrower and back": lambda x: s.Cast(s.Cast(x, dtype="float16"), dtype="float32"),
    "a matrix times one": lambda x: s.broadcast_mul(s.sum(x, axis=0, keepdims=True), s.ones(shape=(2, 1, 1))),
    "a sum of two": lambda x: s.add_n(x, s.negative(x) * 3),
    "two joined": lambda x: s.Concat(x, s.negative(x) * 3, dim=1),
    "other order": lambda x: s.transpose(x, axes=(0, 2, 1)),
    "softmax": lambda x: s.SoftmaxOutput(x, s.Variable("label")),
    "regression": lambda x: s.LinearRegressionOutput(x, s.Variable("label")),
}  # fmt: skip


@pytest.mark.parametrize("name", STAYS)
def test_operators_with_an_effect_stay(passes, name):
    executor = assert_same_without(passes, s.tanh(STAYS[name](s.negative(x_and()))), x=(2, 3, 4))
    assert len(ops(executor, False)) > 2


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_whole_numbers(passes, dtype):
    x = x_and(dtype=dtype)
    big = np.array([2**31 - 1, -5, 0, 7] if dtype == "int32" else [2**62 + 1, -5, 0, 7])
    for net, count in ((x + 0, 0), (x - 0, 0), (x * 1, 0), (x / 1, 1)):
        executor = s.Group([net]).simple_bind(mx.cpu(), grad_req="null", x=(4,), type_dict={"x": dtype})
        executor.arg_dict["x"][:] = mx.nd.array(big, dtype=dtype)
        result = executor.forward()[0].asnumpy()
        assert len(ops(executor, False)) == count
        assert result.dtype == dtype
        if not count:
            np.testing.assert_array_equal(result, big)


def test_transposes_of_axes_of_length_one_are_removed(passes):
    x = s.negative(x_and())
    executor = assert_same_without(passes, s.transpose(x, axes=(1, 0, 3, 2)), x=(1, 5, 7, 1))
    assert ops(executor, False) == ["negative", "Reshape"]
    assert len(executor._mode(False).plan.steps()) == 1, "a view takes no step"


def test_consecutive_transposes_are_merged(passes):
    x = s.negative(x_and())
    net = s.SwapAxis(s.transpose(x, axes=(1, 2, 0)), dim1=0, dim2=1) * 2
    executor = assert_same_without(passes, net, x=(2, 3, 4))
    assert ops(executor, False) == ["negative", "transpose", "_mul_scalar"]
    assert_same_without(passes, s.Group([net, s.transpose(x, axes=(1, 2, 0))]), x=(2, 3, 4))


def test_dropout_is_removed_only_in_prediction(passes):
    executor = assert_same_without(passes, s.Dropout(s.tanh(x_and()), p=0.5) * 2, x=SHAPE)
    assert ops(executor, True)[:2] == ["tanh", "Dropout"]
    assert ops(executor, False) == ["tanh", "_mul_scalar"]


def test_dropout_with_p_0_is_removed_in_training(passes):
    executor = assert_same_without(passes, s.Dropout(s.tanh(x_and()), p=0.0), x=SHAPE)
    passes([])
    plain = ops(filled(s.tanh(x_and()), x=SHAPE))
    assert ops(executor) == plain


def test_outputs_may_be_variables(passes):
    x = x_and()
    executor = assert_same_without(
        passes, s.Group([s.identity(x), s.BlockGrad(x), x * 1, s.Variable("y") + x]), x=SHAPE
    )
    assert ops(executor, False) == ["elemwise_add"]
    executor.arg_dict["x"][:] = 3
    read = executor.forward()[0]
    executor.arg_dict["x"][:] = 4
    np.testing.assert_array_equal(read.asnumpy(), np.full(SHAPE, 3))


def test_reads_of_a_state_stay_where_they_are(passes):
    """A copy of a moving average taken before it moves is not the average itself."""
    x = x_and()
    net = s.Group([s.BatchNorm(x, name="norm", momentum=0.5), s.identity(x)])
    assert_same_without(passes, net, x=SHAPE)


# -- unused outputs ----------------------------------------------------------------------------------------


def network():
    x = s.Activation(s.FullyConnected(s.Variable("data"), num_hidden=5, name="fc1"), act_type="tanh", name="act")
    return s.SoftmaxOutput(s.FullyConnected(x, num_hidden=3, name="fc2"), name="softmax")


def test_operators_without_readers_do_not_run(passes):
    internals = network().get_internals()
    executor = internals["act_output"].simple_bind(mx.cpu(), data=(2, 4))
    assert ops(executor, False) == ["FullyConnected", "Activation"]
    assert list(executor.arg_dict) == ["data", "fc1_weight", "fc1_bias"]


def test_unrequested_gradients_are_not_computed(passes):
    def backward(**requests):
        net = network()
        requests = {name: requests.get(name, "null") for name in net.list_arguments()}
        return filled_with(net, requests).plan.backward

    def filled_with(net, requests):
        return net.simple_bind(mx.cpu(), grad_req=requests, data=(2, 4), softmax_label=(2,))

    names = [node.op.name for node in backward(fc2_weight="write")]
    assert "_backward_SoftmaxOutput" in names
    assert "_backward_Activation" not in names
    assert len(names) < len(backward(fc1_weight="write", fc2_weight="write"))
    assert not backward()


@pytest.fixture(scope="module")
def large():
    """Return a graph of about 20,000 nodes."""
    x = x_and()
    for step in range(4600):
        x = s.Reshape(s.identity(x + 1.0) * s.ones(shape=(4,)), shape=(4,)) if step % 2 else s.tanh(x)
    nodes = x.nodes()
    variables = [node for node in nodes if node.is_variable]
    shapes = infer.infer_shapes(nodes, dict.fromkeys(variables, (4,)))
    dtypes = infer.infer_types(nodes, dict.fromkeys(variables, np.dtype(np.float32)))
    return compiler.graph_of(x.entries, variables, shapes, dtypes, True)


@pytest.mark.parametrize("each", [fold_constants, drop_identities, merge_common])
def test_many_nodes_are_simplified_quickly(large, each):
    assert len(large.nodes()) > 20_000
    start = time.process_time()
    each(large, compiler.options_of("cpu"))
    assert time.process_time() - start < 2
