"""Parts of ``mx.np`` arrays: copies as in MXNet, with a warning for lost writes, or NumPy's views on demand."""

import warnings

import numpy as onp
import pytest

import flowmx as mx
from flowmx import autograd, np
from flowmx.errors import LostWriteWarning
from flowmx.numpy import view_semantics

PARTS = {
    "column": lambda xp, a: a[:, 1],
    "steps": lambda xp, a: a[::-2, 1:3],
    "T": lambda xp, a: a.T,
    "of_part": lambda xp, a: a[1:][:, ::2].T[1:],
    "transpose": lambda xp, a: xp.transpose(a, (1, 0)),
    "split": lambda xp, a: xp.split(a, 2, 1)[1],
    "flip": lambda xp, a: xp.flip(a, 1),
    "rot90": lambda xp, a: xp.rot90(a),
    "moveaxis": lambda xp, a: xp.moveaxis(a, 0, 1),
    "swapaxes": lambda xp, a: a.swapaxes(0, 1),
    "squeeze": lambda xp, a: a[None, :, 2:].squeeze(0),
    "atleast_3d": lambda xp, a: xp.atleast_3d(a)[:, 1],
}


@pytest.fixture(autouse=True)
def reset_warnings(monkeypatch):
    monkeypatch.setattr(view_semantics, "_warned", set())


def array():
    return onp.arange(24, dtype="float32").reshape(4, 6)


@pytest.mark.parametrize("name", PARTS)
def test_parts_are_views_on_demand(name):
    a = array()
    x = np.array(a)
    with mx.util.np_views():
        part = PARTS[name](np, x)
    expected = PARTS[name](onp, a)
    onp.testing.assert_array_equal(part.asnumpy(), expected)
    part *= 2
    expected *= 2
    part[0] = -1
    expected[0] = -1
    onp.testing.assert_array_equal(x.asnumpy(), a)


@pytest.mark.parametrize("name", PARTS)
def test_parts_are_copies_by_default_and_lost_writes_warn(name):
    x = np.array(array())
    part = PARTS[name](np, x)
    with pytest.warns(LostWriteWarning, match="np_views"):
        part *= 2
    onp.testing.assert_array_equal(x.asnumpy(), array())


def write_thrice(x):
    for _ in range(3):
        x[:, 1:][...] = 0


def test_lost_writes_warn_once_per_line():
    x = np.array(array())
    with pytest.warns(LostWriteWarning) as records:
        write_thrice(x)
    assert len(records) == 1
    with pytest.warns(LostWriteWarning):
        np.add(x[0], 1, out=x.T[:, 0])


def test_other_writes_do_not_warn():
    x, a = np.array(array()), array()
    x.wait_to_read()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x[:, 1] += 1
        x[::2, 1:3] *= 2
        x[:, ::2] **= 2
        part = x[:, 1].copy()
        part += 1
        part = x[:, 1] * 2
        part[0] = 1
    a[:, 1] += 1
    a[::2, 1:3] *= 2
    a[:, ::2] **= 2
    onp.testing.assert_array_equal(x.asnumpy(), a)


def test_gradients_of_writes_into_views():
    x = np.ones((3, 4))
    x.attach_grad()
    with mx.util.np_views(), autograd.record():
        y = x * 2
        y.T[0] = 0
        part = y[:, 1]
        part *= 3
        (y * y).sum().backward()
    onp.testing.assert_array_equal(x.grad.asnumpy(), onp.tile([0, 72, 8, 8], (3, 1)))
