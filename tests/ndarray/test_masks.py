"""Masks as indices: bools select, and masks of numbers are row numbers, as in MXNet, with a warning."""

import warnings

import numpy as np
import pytest

import flowmx as mx
from flowmx import nd
from flowmx.ndarray import indexing


@pytest.fixture(autouse=True)
def forget_lines():
    """Warn again at lines that warned before."""
    indexing._warned_lines.clear()


NUMBERS = "the index is a mask of the numbers 0 and 1.*mask.astype\\('bool'\\).*contrib.boolean_mask"


def rows():
    return nd.array([[1, 2, 3], [4, 5, 6]])


def numbers():
    return nd.array([1, 2, 3, 4])


MASKS = {
    "comparison": lambda x: x > 2,
    "comparison of arrays": lambda x: x > nd.full(x.shape, 2),
    "function": lambda x: nd.greater(x, 2),
    "not": lambda x: ~(x <= 2),
    "and": lambda x: nd.logical_and(x > 2, x < 100),
    "product": lambda x: (x > 2) * (x < 100),
    "view": lambda x: (nd.concat(x, x, dim=0) > 2)[: x.shape[0]],
    "bools": lambda x: nd.array((x > 2).asnumpy() > 0),
    "list of bools": lambda x: nd.array([bool(each) for each in (x > 2).asnumpy()]),
}


@pytest.mark.parametrize("kind", MASKS)
def test_a_mask_of_numbers_is_row_numbers_and_warns(kind):
    """MXNet 1.9.1: [1, 1, 2, 2], and [0, 0, 3, 4] after the assignment, without a word."""
    x = numbers()
    mask = MASKS[kind](x)
    with pytest.warns(UserWarning, match=NUMBERS):
        assert x[mask].asnumpy().tolist() == [1, 1, 2, 2]
    with pytest.warns(UserWarning, match=NUMBERS):
        x[mask] = 0
    assert x.asnumpy().tolist() == [0, 0, 3, 4]


def test_masks_of_numbers_have_the_shapes_of_mxnet():
    x = rows()
    with pytest.warns(UserWarning, match=NUMBERS):
        assert x[x > 2].shape == (2, 3, 3)
    with pytest.warns(UserWarning, match=NUMBERS):
        assert x[:, nd.array([True, False, True])].asnumpy().tolist() == [[2, 1, 2], [5, 4, 5]]
    with pytest.warns(UserWarning, match=NUMBERS):
        x[x > 2] = 0
    assert x.asnumpy().tolist() == [[0, 0, 0], [0, 0, 0]]


def test_mx_np_warns_of_masks_of_numbers_and_selects_by_bools():
    x = mx.np.array([[1, 2, 3], [4, 5, 6]])
    mask = mx.np.array([True, False, True])
    assert mask.dtype == np.float32  # as in MXNet
    with pytest.warns(UserWarning, match=NUMBERS):
        assert x[:, mask].asnumpy().tolist() == [[2, 1, 2], [5, 4, 5]]
    assert x[x > 2].asnumpy().tolist() == [3, 4, 5, 6]
    x[x > 2] = 0
    assert x.asnumpy().tolist() == [[1, 2, 0], [0, 0, 0]]


def test_the_advice_selects_by_the_mask_and_nothing_else_warns():
    x = numbers()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert x[(x > 2).astype("bool")].asnumpy().tolist() == [3, 4]
        assert nd.contrib.boolean_mask(x, x > 2).asnumpy().tolist() == [3, 4]
        assert x[(x > 2).astype("int32")].asnumpy().tolist() == [1, 1, 2, 2]
        assert x[nd.array([1, 0, 1])].asnumpy().tolist() == [2, 1, 2]
        assert x[nd.array([True, False, True, False], dtype="bool")].asnumpy().tolist() == [1, 3]
        assert x[np.array([True, False, True, False])].asnumpy().tolist() == [1, 3]
        mask = x > 2
        mask[:] = nd.array([0, 1, 2, 3])  # no mask any more
        assert x[mask].asnumpy().tolist() == [1, 2, 3, 4]
        x[(x > 2).astype("bool")] = nd.array([8, 9])
    assert x.asnumpy().tolist() == [1, 2, 8, 9]


@pytest.mark.parametrize("make", [numbers, rows])
def test_a_single_bool_reads_one_row_as_in_mxnet(make):
    x = make()
    for key in (True, False):
        assert x[key].shape == x[int(key)].shape
        assert x[key].asnumpy().tolist() == x[int(key)].asnumpy().tolist()
    assert numbers()[True].shape == (1,)
