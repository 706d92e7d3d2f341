"""Inference of shapes and dtypes runs until nothing changes, and skips complete operators."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.ops import lookup
from tests.graph_runs import operator_of
from tests.op_cases import every_case

LENGTH = 20
SHAPE = (3, 4)
GIVEN = {"dtype": {"dtype": "float64"}, "shape": {"shape": SHAPE}}


def inferred(symbol, what):
    """Return the dtypes, as text, or the shapes of every argument and output."""
    if what == "shape":
        arguments, outputs, _ = symbol.infer_shape()
        return [*arguments, *outputs]
    arguments, outputs, _ = symbol.infer_type()
    return [np.dtype(each).name for each in (*arguments, *outputs)]


def everywhere(symbol, what):
    expected = SHAPE if what == "shape" else "float64"
    return [expected] * (len(symbol.list_arguments()) + len(symbol.list_outputs()))


ELSEWHERE = {"LeakyReLU", "SoftmaxOutput"}
"""Operators with an input of several forms, one of which is the default if it is unknown."""


def agree(inferred_, complete):
    """Return whether partially known shapes match the complete ones."""
    return all(
        one is None or (len(one) == len(other) and all(n in (-1, m) for n, m in zip(one, other, strict=True)))
        for one, other in zip(inferred_, complete, strict=True)
    )


def test_partial_shapes_infer_the_same_result():
    """Each case hides one shape after the other, then all of them, then each length."""
    for case in every_case():
        op, shapes = operator_of(case), [array.shape for array in case.call_inputs()]
        complete = op.infer_shape([*shapes])[1]
        count = len(shapes)
        for index in range(count + 1):
            values = [None if index in (each, count) else shapes[each] for each in range(count)]
            inputs, outputs = op.infer_shape([*values])
            assert agree(outputs, complete), (op, values, outputs)
            assert agree(inputs, shapes) or case.op in ELSEWHERE, (op, values, inputs)
        for index, shape in enumerate(shapes):
            for axis in range(len(shape)):
                values = [*shapes[:index], (*shape[:axis], -1, *shape[axis + 1 :]), *shapes[index + 1 :]]
                assert agree(op.infer_shape([*values])[1], complete), (op, values)


@pytest.mark.parametrize(("what", "index"), [("dtype", 0), ("shape", 0), ("shape", LENGTH // 2), ("shape", LENGTH)])
def test_one_variables_shape_reaches_a_whole_chain(what, index):
    symbol = None
    for step in range(LENGTH + 1):
        variable = mx.sym.Variable(f"v{step}", **(GIVEN[what] if step == index else {}))
        symbol = variable if symbol is None else mx.sym.elemwise_add(symbol, variable)
    assert inferred(symbol, what) == everywhere(symbol, what)


def zigzag(what):
    """Build sums, each of which depends on one on its other side, so that a sweep completes only one of them."""
    path = [5, 0, 4, 1, 3, 2]
    shared = [mx.sym.Variable(f"v{index}", **(GIVEN[what] if index == 0 else {})) for index in range(len(path) + 1)]
    places = {node: index for index, node in enumerate(path)}
    return [mx.sym.elemwise_add(shared[places[node]], shared[places[node] + 1]) for node in range(len(path))]


@pytest.mark.parametrize("what", GIVEN)
def test_alternating_forward_and_backward_inference_completes(what):
    group = mx.sym.Group(zigzag(what))
    assert inferred(group, what) == everywhere(group, what)


@pytest.mark.parametrize("what", GIVEN)
def test_uninferable_operators_do_not_stop_inference(what):
    def unknown(name):
        return mx.sym.elemwise_add(mx.sym.Variable(f"{name}1"), mx.sym.Variable(f"{name}2"))

    group = mx.sym.Group([unknown("first"), *zigzag(what), unknown("last")])
    arguments, outputs, _ = getattr(group, "infer_shape_partial" if what == "shape" else "infer_type_partial")()
    names = [np.dtype(each).name if isinstance(each, type) else each for each in (*arguments, *outputs)]
    assert names.count(SHAPE if what == "shape" else "float64") == len(everywhere(mx.sym.Group(zigzag(what)), what))


def test_an_operator_that_knows_one_dtype_waits_for_the_other():
    y = mx.sym.Variable("y")
    where = mx.sym.where(mx.sym.Variable("condition", dtype="int32"), mx.sym.Variable("x"), y)
    net = mx.sym.Group([where, mx.sym.elemwise_add(y, mx.sym.Variable("z", dtype="float64"))])
    assert inferred(net, "dtype") == ["int32", "float64", "float64", "float64", "float64", "float64"]


@pytest.mark.parametrize(("what", "method"), [("shape", "infer_shape"), ("dtype", "infer_type")])
def test_a_complete_operator_is_inferred_once(what, method, monkeypatch):
    calls = []
    kind = type(lookup("elemwise_add").create())
    real = getattr(kind, method)

    def counting(self, *inputs):
        calls.append(self)
        return real(self, *inputs)

    symbol = mx.sym.Variable("v", **GIVEN[what])
    for step in range(LENGTH):
        symbol = mx.sym.elemwise_add(symbol, mx.sym.Variable(f"v{step}", **GIVEN[what]))
    unknown = mx.sym.elemwise_add(mx.sym.Variable("a"), mx.sym.Variable("b"))
    # Unknown shapes are inferred again, and prevent the others from ending after the first sweep.
    nodes = mx.sym.Group([symbol, unknown])
    monkeypatch.setattr(kind, method, counting)
    getattr(nodes, f"{method}_partial")()
    # Equal shapes are inferred together.
    assert len(calls) == (2 if what == "shape" else LENGTH + 2)


UNARY = {
    "exp": mx.sym.exp, "a scalar": lambda x: x + 1, "relu": lambda x: mx.sym.Activation(x, act_type="relu"),
    "sum": mx.sym.sum, "BatchNorm": lambda x: mx.sym.BatchNorm(x)[0], "LayerNorm": mx.sym.LayerNorm,
    "FullyConnected": lambda x: mx.sym.FullyConnected(x, num_hidden=3),
    "split": lambda x: mx.sym.split(x, num_outputs=2)[0],
    "SoftmaxOutput": mx.sym.SoftmaxOutput, "transpose": mx.sym.transpose, "clip": lambda x: mx.sym.clip(x, 0, 1),
}  # fmt: skip


@pytest.mark.parametrize("make", UNARY.values(), ids=UNARY)
def test_a_required_output_dtype_applies_to_the_inputs(make):
    """MXNet 1.9.1 infers float64 for each of them."""
    symbol = mx.sym.elemwise_add(make(mx.sym.Variable("x")), mx.sym.Variable("y"))
    arguments, outputs, _ = symbol.infer_type(y="float64")
    assert {np.dtype(each).name for each in (*arguments, *outputs)} == {"float64"}


@pytest.mark.parametrize("make", [lambda x: mx.sym.cast(x, dtype="float64"), mx.sym.shape_array], ids=["cast", "shape"])
def test_an_independent_output_dtype_infers_no_input_dtype(make):
    symbol = make(mx.sym.Variable("x"))
    assert symbol.infer_type_partial()[0] == [None]


def test_an_output_dtype_unsupported_by_the_inputs_infers_nothing():
    density = mx.sym.random_pdf_normal(*(mx.sym.Variable(name) for name in ("sample", "mu", "sigma")))
    symbol = mx.sym.elemwise_add(mx.sym.exp(density), mx.sym.Variable("c"))
    assert symbol.infer_type_partial(c="int32")[0] == [None, None, None, np.int32]


class Guesses(mx.operator.CustomOpProp):
    def infer_type(self, in_type):
        assert all(each is None for each in in_type) or None not in in_type
        return in_type, [in_type[0]], []


def test_custom_operators_do_not_see_guessed_shapes():
    mx.operator.register("infer_guesses")(Guesses)
    created = mx.sym.Custom(mx.sym.Variable("x"), op_type="infer_guesses")
    symbol = mx.sym.elemwise_add(created, mx.sym.Variable("y"))
    assert symbol.infer_type_partial(y="float64")[0] == [None, np.float64]


def test_unknown_lengths_within_np_shape():
    x, y = mx.sym.var("x"), mx.sym.var("y")
    with mx.np_shape():
        assert mx.sym.sin(x).infer_shape_partial() == ([None], [None], [])
        assert mx.sym.dot(x, y).infer_shape_partial(x=(-1, 3, 4), y=(4, 5))[1] == [(-1, 3, 5)]
        assert mx.sym.sin(x).infer_shape_partial(x=(0, 3)) == ([(0, 3)], [(0, 3)], [])
        layer = mx.gluon.nn.Conv2D(4, 3)
        assert layer.weight.shape == (4, -1, 3, 3)
    assert layer.weight.shape == (4, 0, 3, 3)


def test_a_dense_layer_refuses_a_scalar():
    with mx.np_shape(), pytest.raises(mx.MXNetError, match=r"shape \(\)"):
        mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=3).infer_shape_partial(x=())
