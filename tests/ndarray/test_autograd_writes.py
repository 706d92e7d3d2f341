"""Writes into memory while recording: all handles on the memory see the origin of the new content.

Random programs of them are in test_tape_programs.py.
"""

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd, nd
from flowmx.errors import AutogradError

X = [1.0, 2.0, 3.0]


def marked(values=X, ctx=None):
    x = nd.array(values, ctx)
    x.attach_grad()
    return x


def whole(x, z):
    z[:] = x


def copied(x, z):
    x.copyto(z)


def added(x, z):
    z += x


def out_array(x, z):
    nd.elemwise_add(x, nd.zeros(3), out=z)


def by_reshaped_handle(x, z):
    z.reshape((1, 3))[:] = x


def backwards(x, z):
    z[::-1] = x[::-1]


def part(x, z):
    z[0:2] = x[0:2]


def by_view(x, z):
    v = z[0:2]
    v += x[0:2]


def by_view_of_view(x, z):
    z.reshape((3, 1))[0:2][:, 0][:] = x[0:2]


def out_view(x, z):
    nd.identity(x[0:2], out=z[0:2])


def sliced(x, z):
    z.slice_assign(x[0:2], begin=(0,), end=(2,), step=(1,))


def one_by_one(x, z):
    z[0] = x[0]
    z[1] = x[1]


def copied_to_view(x, z):
    x[0:2].copyto(z[0:2])


def chosen(x, z):
    z[nd.array([1, 0], dtype="int32")] = x[nd.array([1, 0], dtype="int32")]


def masked(x, z):
    z[nd.array([1, 1, 0], dtype="bool")] = x[0:2]


@pytest.mark.parametrize("write", [whole, copied, added, out_array, by_reshaped_handle, backwards])
def test_whole_arrays(write):
    x, z = marked(), nd.zeros(3)
    with autograd.record():
        write(x, z)
        y = z * z + x
    y.backward()
    assert x.grad.asnumpy().tolist() == [3, 5, 7]


@pytest.mark.parametrize(
    "write", [part, by_view, by_view_of_view, out_view, sliced, one_by_one, copied_to_view, chosen, masked]
)
def test_parts(write):
    x, z = marked(), nd.zeros(3)
    with autograd.record():
        write(x, z)
        y = z * z + x
    y.backward()
    assert z.asnumpy().tolist() == [1, 2, 0]
    assert x.grad.asnumpy().tolist() == [3, 5, 1]


@pytest.mark.parametrize("write", [part, by_view, out_view, sliced, chosen, masked])
def test_overwritten_values_have_no_gradient(write):
    x, w = marked(), marked([5, 6, 7])
    with autograd.record():
        z = w * 0 if write is by_view else w * 2
        write(x, z)
        y = z * nd.array([10, 20, 30])
    y.backward()
    assert x.grad.asnumpy().tolist() == [10, 20, 0]
    assert w.grad.asnumpy().tolist() == ([0, 0, 0] if write is by_view else [0, 0, 60])


@pytest.mark.parametrize("constant", [0, [5, 6], nd.array([5, 6]), np.array([5, 6])])
def test_constants_have_no_gradient(constant):
    x = marked()
    with autograd.record():
        y = x * 2
        y[0:2] = constant
        z = y * 10
        y[:] = 1
    z.backward()
    assert x.grad.asnumpy().tolist() == [0, 0, 20]
    with pytest.raises(AutogradError, match="not computed inside"):
        y.backward()


def test_in_place_arithmetic_copies_inputs_that_its_gradient_needs():
    x, w = marked(), marked([2, 3, 4])
    with autograd.record():
        y = x * 1
        y *= w
        y *= y
        y -= w
        y **= 2
    y.backward()
    a, b = np.array(X), w.asnumpy()
    np.testing.assert_allclose(x.grad.asnumpy(), 2 * (a**2 * b**2 - b) * 2 * a * b**2, 1e-5)
    np.testing.assert_allclose(w.grad.asnumpy(), 2 * (a**2 * b**2 - b) * (2 * a**2 * b - 1), 1e-5)


def test_the_error_for_a_changed_array_names_the_line():
    x = marked()
    with autograd.record():
        y = nd.exp(x)
        y += 1
    with pytest.raises(
        AutogradError, match=r"output 0 of 'exp' \(shape \(3,\), called at .*: y = nd.exp\(x\)\) was changed"
    ):
        y.backward()


def test_a_change_in_the_same_bulk_is_detected():
    x = nd.array([2.0, 3.0])
    x.attach_grad()
    with autograd.record(), mx.engine.bulk(8):
        factor = nd.ones_like(x)
        product = x * factor
        factor[:] = product
        loss = (product + factor).sum()
        with pytest.raises(AutogradError, match="changed in place"):
            loss.backward()


def test_values_are_broadcast_and_converted():
    x, w = marked([2.0]), nd.array([[3.0]], dtype="float64")
    w.attach_grad()
    z = nd.zeros((2, 3))
    with autograd.record():
        z[:] = x
        z[0, 1:] = w
        y = z * nd.array([[1, 2, 3], [4, 5, 6]])
    y.backward()
    assert (x.grad.asnumpy().tolist(), w.grad.asnumpy().tolist()) == ([16], [[5]])
    assert w.grad.dtype == np.float64


def test_the_last_value_for_one_place_has_the_gradient():
    x, z = marked(), nd.zeros(2)
    with autograd.record():
        z[nd.array([0, 1, 0], dtype="int32")] = x
        y = z * nd.array([10, 20])
    y.backward()
    assert z.asnumpy().tolist() == [3, 2]
    assert x.grad.asnumpy().tolist() == [0, 20, 10]


# -- several handles on one memory -------------------------------------------------------------------------


def test_overlapping_views_see_each_others_writes():
    x, z = marked(), nd.zeros(4)
    one, two = z[0:3], z[1:4]
    with autograd.record():
        one[:] = x
        two *= 10
        y = one * nd.array([1, 2, 3]) + two
    y.backward()
    assert one.asnumpy().tolist() == [1, 20, 30]
    # d/dx of x0 + 10·x1, 2·10·x1 + 10·x2, 3·10·x2 + 0
    assert x.grad.asnumpy().tolist() == [1, 30, 40]


def test_a_view_sees_later_writes():
    x, z = marked(), nd.zeros(3)
    v = z[1:]
    with autograd.record():
        z[:] = x
        y = v * 2
    y.backward()
    assert x.grad.asnumpy().tolist() == [0, 2, 2]


def test_views_of_recorded_arrays_share_memory_and_history():
    x = marked()
    with autograd.record():
        y = x * 2
        v = y[0:2]
        v[:] = 7
        z = y * y
    z.backward()
    assert y.asnumpy().tolist() == [7, 7, 6]
    assert x.grad.asnumpy().tolist() == [0, 0, 24]


def test_rows_written_in_a_loop():
    x, rows = marked(), nd.zeros((4, 3))
    with autograd.record():
        h = x
        for t in range(4):
            h = h * 2
            rows[t] = h
        y = rows.sum()
    y.backward()
    assert x.grad.asnumpy().tolist() == [30, 30, 30]


def test_a_detached_handle_has_a_separate_history():
    x = marked()
    with autograd.record():
        y = x * 1
        d = y.detach()
        y *= 3
        z = y + d
        d[:] = x
        w = d * 2
    z.backward(retain_graph=True)
    assert x.grad.asnumpy().tolist() == [3, 3, 3]
    w.backward()
    assert x.grad.asnumpy().tolist() == [2, 2, 2]
    with autograd.record(), pytest.raises(AutogradError, match=r"memory of this array \(shape \(3,\)\) was written at"):
        y * 2


def test_a_view_created_outside_is_a_constant():
    x = marked()
    v = x[0:2]
    with autograd.record():
        y = v * v + x[1:3]
    y.backward()
    assert x.grad.asnumpy().tolist() == [0, 1, 1]


def test_a_write_through_a_view_created_outside_is_detected():
    x = marked()
    with autograd.record():
        y = x * 2
    v = y[0:2]
    with autograd.record():
        v[:] = x[0:2]
        z = v * 3
        with pytest.raises(AutogradError, match=r"was written at .*test_autograd_writes.py.* write .* into a copy"):
            y * 1
    z.backward()
    assert x.grad.asnumpy().tolist() == [3, 3, 0]


def test_recorded_values_do_not_go_into_the_memory_of_a_variable():
    x, w = marked(), marked()
    v = x[0:2]
    with autograd.record():
        v[:] = 5
        y = x * x
        with pytest.raises(AutogradError, match=r"shares its memory with a variable .* write into a copy"):
            v[:] = w[0:2]
    y.backward()
    assert x.grad.asnumpy().tolist() == [10, 10, 6]


def test_writes_outside_are_not_recorded():
    x, z = marked(), nd.zeros(3)
    with autograd.record():
        z[:] = x
        with autograd.pause():
            z[:] = 9
        y = z * z
    y.backward()
    assert x.grad.asnumpy().tolist() == [18, 18, 18]


def test_attach_grad_starts_a_new_history():
    x = marked()
    with autograd.record():
        y = x * 2
        v = y[0:2]
        y.attach_grad()
        z = y * 3
        w = v * 5
    autograd.backward([z, w])
    assert y.grad.asnumpy().tolist() == [3, 3, 3]
    assert x.grad.asnumpy().tolist() == [10, 10, 0]


def test_a_buffer_is_used_again_in_each_iteration():
    x, z = marked(), nd.zeros(3)
    for _ in range(3):
        with autograd.record():
            z[:] = x
            z[1:] *= 2
            y = z * z
        y.backward()
    assert x.grad.asnumpy().tolist() == [2, 16, 24]


def test_a_gradient_buffer_loses_its_history():
    x, w = marked(), marked()
    with autograd.record():
        x.grad[:] = w
        y = x * 2
    y.backward()
    with autograd.record():
        z = x.grad * x
    z.backward()
    assert x.grad.asnumpy().tolist() == [2, 2, 2]
    assert w.grad.asnumpy().tolist() == [0, 0, 0]


# -- second derivatives, devices ---------------------------------------------------------------------------


@pytest.mark.parametrize("write", [whole, part, by_view, chosen, copied, out_view])
def test_second_derivatives(write):
    x, z = marked(), nd.zeros(3)
    with autograd.record():
        write(x, z)
        y = z * z * z
        (first,) = autograd.grad(y, x, create_graph=True)
    first.backward()
    written = np.array([1, 1, 0]) if write not in (whole, copied) else 1
    assert x.grad.asnumpy().tolist() == (6 * np.array(X) * written).tolist()


@pytest.mark.parametrize("there", [mx.cpu(0), mx.cpu(1), mx.sim(0)], ids=str)
@pytest.mark.parametrize(
    "move",
    [
        lambda x, there: x.copyto(there),
        lambda x, there: x.as_in_context(there),
        lambda x, there: x.copyto(nd.zeros(3, there)),
        lambda x, there: assigned(nd.zeros(3, there), x),
    ],
)
@pytest.mark.filterwarnings("ignore::flowmx.errors.CrossDeviceWarning")
def test_copies_between_devices(move, there):
    x = marked(ctx=mx.cpu(0))
    with autograd.record():
        z = move(x, there)
        y = (z * z).copyto(mx.cpu(0)) * x
        (first,) = autograd.grad(y, x, create_graph=True)
    first.backward()
    assert first.asnumpy().tolist() == [3, 12, 27]
    assert x.grad.asnumpy().tolist() == [6, 12, 18]


def assigned(target, value):
    target[:] = value
    return target
