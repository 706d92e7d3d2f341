"""CTCLoss: every labelling of short data by hand, names, optional inputs, dtypes, refusals."""

import itertools

import numpy as np
import pytest

import flowmx as mx


def collapsed(path, blank):
    """Return the labels of a path: repetitions are merged, then blanks are removed."""
    return [label for label, _ in itertools.groupby(path) if label != blank]


@pytest.mark.parametrize("blank", ["first", "last"])
def test_all_labellings_of_short_data(blank):
    rng = np.random.default_rng(0)
    data = rng.standard_normal((4, 1, 3))
    probability = np.exp(data[:, 0]) / np.exp(data[:, 0]).sum(axis=1, keepdims=True)
    symbol = 0 if blank == "first" else 2
    expected = {}
    for path in itertools.product(range(3), repeat=4):
        spelled = tuple(collapsed(path, symbol))
        expected[spelled] = expected.get(spelled, 0) + np.prod(probability[range(4), path])
    for labelling, total in expected.items():
        padded = [*labelling, *[0 if blank == "first" else -1] * (4 - len(labelling))]
        loss = mx.nd.CTCLoss(mx.nd.array(data, dtype="float64"), mx.nd.array([padded]), blank_label=blank)
        np.testing.assert_allclose(loss.asscalar(), -np.log(total), rtol=1e-10)
    np.testing.assert_allclose(sum(expected.values()), 1)


def test_names_and_shapes_as_mxnet():
    data, label = mx.sym.Variable("d"), mx.sym.Variable("l")
    net = mx.sym.CTCLoss(data, label, name="c")
    assert net.list_outputs() == ["c_output0"]
    assert net.infer_shape(d=(6, 3, 5), l=(3, 4)) == ([(6, 3, 5), (3, 4)], [(3,)], [])
    net = mx.sym.ctc_loss(data, label, use_label_lengths=True, name="c")
    assert net.list_arguments() == ["d", "l", "c_label_lengths"]
    assert net.infer_shape(d=(6, 3, 5), l=(3, 4))[0] == [(6, 3, 5), (3, 4), (3,)]
    loss = mx.sym.ctc_loss(data, label, mx.sym.Variable("n"), use_label_lengths=True, name="c")
    assert loss.list_arguments() == ["d", "l", "n"]


def test_lengths_by_position_or_name():
    data, label, lengths = (
        mx.nd.random.normal(shape=(6, 2, 4)),
        mx.nd.array([[1, 2, 3], [3, 3, 1]]),
        mx.nd.array([1, 2]),
    )
    one = mx.nd.CTCLoss(data, label, lengths, use_label_lengths=True)
    other = mx.nd.contrib.ctc_loss(data, label, None, lengths, use_label_lengths=True)
    third = mx.nd.contrib.CTCLoss(data, label, label_lengths=lengths, use_label_lengths=True)
    assert mx.test_utils.same(one, other)
    assert mx.test_utils.same(one, third)
    padded = mx.nd.array([[1, 0, 0], [3, 3, 0]])
    assert mx.test_utils.same(one, mx.nd.ctc_loss(data, padded))


def test_half_precision_and_whole_labels():
    data = mx.nd.random.normal(shape=(6, 2, 4))
    expected = mx.nd.CTCLoss(data, mx.nd.array([[1, 2], [3, 3]])).asnumpy()
    half = mx.nd.CTCLoss(data.astype("float16"), mx.nd.array([[1, 2], [3, 3]], dtype="int32"))
    assert half.dtype == np.float16
    np.testing.assert_allclose(half.asnumpy(), expected, rtol=1e-2)


@pytest.mark.parametrize("shape", [(0, 2, 4), (5, 0, 4)])
def test_no_steps_and_no_examples(shape):
    data, label = mx.nd.array(np.zeros(shape, "float32")), mx.nd.array(np.zeros((shape[1], 0), "float32"))
    data.attach_grad()
    with mx.autograd.record():
        loss = mx.nd.CTCLoss(data, label)
    loss.backward()
    assert loss.shape == shape[1:2]
    assert not loss.asnumpy().any()


def test_an_example_without_steps_costs_nothing():
    loss = mx.nd.CTCLoss(mx.nd.zeros((3, 2, 4)), mx.nd.zeros((2, 1)), mx.nd.array([0, 1]), use_data_lengths=True)
    np.testing.assert_allclose(loss.asnumpy(), [0, np.log(4)], rtol=1e-6)


REFUSED = [
    ([(6, 3), (3, 2)], {}, "data has shape .*expected 3 axes"),
    ([(6, 3, 4), (2, 2)], {}, r"label has shape \(2, 2\), expected \(3, -1\)"),
    ([(6, 3, 4), (3, 7)], {}, "at least one step per label"),
    ([(6, 3, 4), (3, 2), (2,)], {"use_data_lengths": True}, r"data_lengths has shape \(2,\), expected \(3,\)"),
    ([(6, 3, 4), (3, 2)], {"use_data_lengths": True}, "data_lengths is missing"),
    ([(6, 3, 4), (3, 2)], {"blank_label": "middle"}, "blank_label is 'middle'"),
]


@pytest.mark.parametrize(("shapes", "params", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused_at_the_call(shapes, params, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        mx.nd.CTCLoss(*(mx.nd.zeros(shape) for shape in shapes), **params)
    assert "CTCLoss" in str(caught.value)


def test_a_label_outside_the_classes_is_refused():
    loss = mx.nd.CTCLoss(mx.nd.zeros((6, 1, 4)), mx.nd.array([[1, 4]]))
    with pytest.raises(IndexError, match="labels are from 1 to 4, expected 0 to 3"):
        loss.wait_to_read()
