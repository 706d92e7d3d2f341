"""``mx.test_utils`` accepts the results that MXNet accepts, and rejects wrong ones."""

import gzip
import os
import struct
from statistics import NormalDist

import numpy as np
import pytest

import flowmx as mx
from flowmx import settings
from flowmx import test_utils as utils


@pytest.fixture(autouse=True)
def seeded():
    np.random.seed(0)
    mx.random.seed(0)


# -- comparing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "within", "beyond"),
    [("float16", 1.05, 1.2), ("float32", 1.0005, 1.01), ("float64", 1.000005, 1.0001), ("int32", 1, 2)],
)
def test_tolerances_are_those_of_the_dtype(dtype, within, beyond):
    one = np.ones(3, dtype)
    assert utils.almost_equal(one, np.full(3, within, dtype))
    assert not utils.almost_equal(one, np.full(3, beyond, dtype))
    with pytest.raises(AssertionError, match="differ in 3 of 3"):
        utils.assert_almost_equal(mx.nd.array(one, dtype=dtype), np.full(3, beyond, dtype))


def test_the_less_precise_of_two_counts():
    utils.assert_almost_equal(np.ones(2, "float64"), np.full(2, 1.05, "float16"))
    utils.assert_almost_equal(np.ones(2), np.full(2, 1.05), rtol={np.float64: 0.1})
    assert utils.get_tols(np.ones(2, "float16"), np.ones(2), None, 3) == (1e-2, 3)


def test_a_dtype_without_a_tolerance_is_compared_exactly():
    assert utils.get_tolerance(np.ones(2, "int16"), {np.float64: 0.1}, {}) == 0
    assert utils.get_tolerance(np.ones(2, "int16"), None, {np.dtype("int16"): 2}) == 2


def test_shapes_are_broadcast_unless_forbidden():
    utils.assert_almost_equal(mx.nd.ones((2, 3)), 1.0)
    with pytest.raises(AssertionError, match=r"a has shape \(2, 3\), b has \(\)"):
        utils.assert_almost_equal(mx.nd.ones((2, 3)), 1.0, use_broadcast=False)
    assert utils.almost_equal(mx.nd.ones((2, 3)), 1.0, use_broadcast=True)


def test_some_elements_may_be_off():
    one, other = np.zeros(100), np.zeros(100)
    other[7] = 1
    utils.assert_almost_equal_with_err(one, other, rtol=0, atol=0.1, etol=0.02)
    with pytest.raises(AssertionError, match=r"1\.00% of the elements are wrong"):
        utils.assert_almost_equal_with_err(one, other, rtol=0, atol=0.1, etol=0.005)
    with pytest.raises(AssertionError, match="differ in 1 of 100"):
        utils.assert_almost_equal_with_err(one, other, rtol=0, atol=0.1)


def test_not_a_number():
    utils.assert_almost_equal_ignore_nan([1, np.nan, 3], [1, 2, 3])
    utils.assert_allclose([np.nan], [np.nan])
    with pytest.raises(AssertionError):
        utils.assert_almost_equal_ignore_nan([1, np.nan, 3], [1, 2, 4])


def test_shared_memory_and_structure():
    a = mx.nd.ones((2, 3))
    assert utils.same_array(a, a[:]) and not utils.same_array(a, a.copy())
    assert a.asnumpy().tolist() == [[1, 1, 1]] * 2
    x = mx.sym.Variable("x")
    assert utils.same_symbol_structure(mx.sym.exp(x), mx.sym.exp(mx.sym.Variable("y")))
    assert not utils.same_symbol_structure(mx.sym.exp(x), mx.sym.log(x))


# -- symbols ---------------------------------------------------------------------------------------------------


def product():
    return mx.sym.Variable("x") * mx.sym.Variable("y")


X, Y, HEAD = np.array([[1.0, 2], [3, 4]]), np.array([[5.0, 6], [7, 8]]), np.array([[1.0, -1], [2, 3]])


def test_simple_forward():
    assert utils.simple_forward(product(), x=X, y=Y).tolist() == (X * Y).tolist()
    split = utils.simple_forward(mx.sym.SliceChannel(mx.sym.Variable("x"), num_outputs=2), x=X)
    assert [each.ravel().tolist() for each in split] == [[1, 3], [2, 4]]


@pytest.mark.parametrize("location", [[X, Y], {"y": Y, "x": X}])
def test_symbolic_forward(location):
    (output,) = utils.check_symbolic_forward(product(), location, [X * Y])
    assert output.shape == (2, 2)
    with pytest.raises(AssertionError, match="EXPECTED_"):
        utils.check_symbolic_forward(product(), location, [X * Y + 0.1])


@pytest.mark.parametrize("request_", ["write", "add", "null", {"x": "add", "y": "write"}, ["null", "add"]])
def test_symbolic_backward(request_):
    right = {"x": HEAD * Y, "y": HEAD * X}
    utils.check_symbolic_backward(product(), [X, Y], [HEAD], right, grad_req=request_)
    if request_ != "null":
        with pytest.raises(AssertionError, match="BACKWARD_"):
            utils.check_symbolic_backward(product(), [X, Y], [HEAD], {"x": right["y"], "y": right["x"]})


def test_symbolic_checks_refuse_wrong_values():
    with pytest.raises(ValueError, match="location has 1 values"):
        utils.check_symbolic_forward(product(), [X], [X])
    with pytest.raises(ValueError, match=r"location lacks \['y'\]"):
        utils.check_symbolic_forward(product(), {"x": X}, [X])
    with pytest.raises(ValueError, match=r"expected has \['z'\]"):
        utils.check_symbolic_backward(product(), [X, Y], [HEAD], {"z": X})
    with pytest.raises(ValueError, match="grad_req is"):
        utils.check_symbolic_backward(product(), [X, Y], [HEAD], [X, Y], grad_req="update")


def batch_norm():
    return mx.sym.BatchNorm(mx.sym.Variable("data"), name="bn", fix_gamma=False, eps=1e-3)


def test_numeric_gradient_of_a_symbol_with_states():
    location = {"data": np.random.randn(4, 3), "bn_gamma": np.ones(3), "bn_beta": np.zeros(3)}
    states = {"bn_moving_mean": np.zeros(3), "bn_moving_var": np.ones(3)}
    utils.check_numeric_gradient(batch_norm(), location, states, numeric_eps=1e-3, rtol=1e-2)
    utils.check_numeric_gradient(batch_norm(), list(location.values()), list(states.values()), grad_nodes=["data"])
    utils.check_numeric_gradient(
        batch_norm(), location, states, grad_nodes={"data": "write", "bn_beta": "null"}, dtype=np.float32
    )
    with pytest.raises(ValueError, match="location has"):
        utils.check_numeric_gradient(batch_norm(), {"data": np.ones((4, 3))}, states)
    with pytest.raises(ValueError, match=r"grad_nodes has \['label'\]"):
        utils.check_numeric_gradient(batch_norm(), location, states, grad_nodes=["label"])


def test_numeric_gradient_refuses_a_symbol_whose_gradient_is_none():
    with pytest.raises(AssertionError, match="gradient of input x"):
        utils.check_numeric_gradient(mx.sym.BlockGrad(mx.sym.Variable("x") * 2), [X])


def test_differences_of_an_executor():
    executor = product().simple_bind(mx.cpu(), x=(2, 2), y=(2, 2))
    actual = utils.numeric_grad(executor, {"x": X, "y": Y}, eps=1e-2)
    np.testing.assert_allclose(actual["x"], Y, rtol=1e-2)
    np.testing.assert_allclose(actual["y"], X, rtol=1e-2)


def entries(**kinds):
    dense = mx.sym.FullyConnected(mx.sym.Variable("data"), name="fc", num_hidden=3)
    return dense, [{"ctx": mx.cpu(0), "data": (2, 4), "type_dict": {"data": kind}} for kind in kinds.values()]


def test_consistency_over_devices_and_dtypes():
    dense, result = entries(a="float32", b="float64", c="float32")
    result[2]["ctx"] = mx.cpu(1)
    params = {}
    truth = utils.check_consistency(dense, result, arg_params=params)
    assert set(truth) == {"fc_output", "data", "fc_weight", "fc_bias"}
    assert truth["fc_output"].dtype == np.float64
    utils.check_consistency(dense, result, grad_req="null", ground_truth=truth, arg_params=params)
    truth["fc_output"] = truth["fc_output"] + 1
    with pytest.raises(AssertionError, match="fc_output"):
        utils.check_consistency(dense, result, grad_req="null", ground_truth=truth, arg_params=params)


def test_consistency_refuses_symbols_that_differ():
    x = mx.sym.Variable("x")
    shapes = [{"ctx": mx.cpu(), "x": (3,)}] * 2
    same_names = [mx.sym.exp(x, name="f"), mx.sym.exp(x * 1.01, name="f")]
    with pytest.raises(AssertionError, match="entry 1 and entry 0"):
        utils.check_consistency(same_names, shapes)
    wrong_gradient = [mx.sym.identity(x, name="f"), mx.sym.BlockGrad(x, name="f")]
    utils.check_consistency(wrong_gradient, shapes, grad_req="null")
    with pytest.raises(AssertionError, match="x "):
        utils.check_consistency(wrong_gradient, shapes)
    with pytest.raises(ValueError, match="at least 2"):
        utils.check_consistency(x, shapes[:1])
    with pytest.raises(ValueError, match="differ in"):
        utils.check_consistency([mx.sym.exp(x, name="f"), mx.sym.exp(x, name="g")], shapes)


@pytest.mark.parametrize("typ", ["whole", "forward"])
def test_speed(typ):
    assert 0 < utils.check_speed(product(), N=3, typ=typ, x=(2, 2), y=(2, 2)) < 10
    assert 0 < utils.check_speed(product(), {"x": X, "y": Y}, N=1, typ=typ) < 10
    with pytest.raises(ValueError, match="typ is 'backward'"):
        utils.check_speed(product(), typ="backward", x=(1,), y=(1,))


# -- making ----------------------------------------------------------------------------------------------------


def test_random_shapes_and_arrays():
    assert all(1 <= n <= 4 for n in utils.rand_shape_nd(50, 4))
    assert len(utils.rand_shape_2d()) == 2 and len(utils.rand_shape_3d(2, 2, 2)) == 3
    assert 0 in utils.rand_shape_nd(100, 1, allow_zero_size=True)
    result = utils.rand_ndarray((50, 40), dtype="float64")
    assert result.shape == (50, 40) and result.dtype == np.float64 and abs(result.asnumpy().std() - 1) < 0.1
    assert abs(utils.rand_ndarray((500,), scale=0.1).asnumpy()).max() <= 0.1
    matrix, by_rows = utils.rand_ndarray((40, 50), "csr", 0.1), utils.rand_ndarray((40, 3, 2), "row_sparse", 0.5)
    assert 100 < matrix.data.shape[0] < 300 and 5 < by_rows.indices.shape[0] < 35
    with pytest.raises(ValueError, match="expected 'default', 'csr' or 'row_sparse'"):
        utils.rand_ndarray((2, 2), "sparse")
    assert [each.shape for each in utils.random_arrays((2,), ())] == [(2,), ()]
    assert utils.random_arrays((3, 1)).dtype == np.float32
    assert sorted(utils.random_sample([1, 2, 3], 3)) == [1, 2, 3]
    x, y = utils.rand_coord_2d(1, 3, 5, 6)
    assert 1 <= x < 3 and y == 5


def test_random_sparse_arrays():
    result, (indptr, indices, data) = utils.rand_sparse_ndarray((20, 30), "csr", 0.25, "float64", data_init=3)
    assert (result.stype, result.dtype, data.size, set(data.asnumpy())) == ("csr", np.float64, 150, {3})
    result.check_format(full_check=True)
    np.testing.assert_array_equal(result.asscipy().indptr, indptr.asnumpy())
    np.testing.assert_array_equal(result.asscipy().indices, indices.asnumpy())
    mixed = utils.rand_ndarray((20, 30), "csr", 0.5, shuffle_csr_indices=True, modifier_func=lambda number: -number)
    assert (mixed.data.asnumpy() <= 0).all()
    assert (np.diff(mixed.indices.asnumpy()) < 0).sum() > 50
    power = utils.rand_sparse_ndarray((5, 16), "csr", 0.5, distribution="powerlaw")[0]
    assert np.diff(power.indptr.asnumpy()).tolist() == [2, 4, 8, 16, 10]
    result, (values, rows) = utils.rand_sparse_ndarray((9, 2, 3), "row_sparse", rsp_indices=[1, 7])
    np.testing.assert_array_equal(result.data.asnumpy(), values)
    assert (rows.tolist(), result.indices.asnumpy().tolist()) == ([1, 7], [1, 7])
    assert utils.create_sparse_array((9, 2), "row_sparse", 2.5, [7, 1]).asnumpy().sum() == 10
    assert utils.create_sparse_array_zd((9, 2), "row_sparse", 0.9).indices.size == 0
    assert utils.create_sparse_array_zd((9, 2), "csr", 1).data.size == 18
    for value, says in [
        (((2, 2), "default", 0.5), "'row_sparse' with 'uniform', or 'csr'"),
        (((2, 2), "csr", 1.5), "density is 1.5"),
        (((2, 2), "csr", 0.5, None, "powerlaw"), "too low for a power law"),
        (((40, 50), "csr", 1, None, "powerlaw"), "too high for a power law"),
    ]:
        with pytest.raises(ValueError, match=says):
            utils.rand_sparse_ndarray(*value)


def test_matrices():
    values = np.linalg.eigvals(utils.new_matrix_with_real_eigvals_2d(5))
    assert np.abs(values.imag).max() < 1e-8 and np.abs(values).max() <= 10 + 1e-6
    batch = utils.new_sym_matrix_with_real_eigvals_nd((2, 4, 4))
    assert batch.shape == (2, 4, 4) and np.array_equal(batch, batch.swapaxes(1, 2))
    wide = utils.new_orthonormal_matrix_2d(3, 5)
    np.testing.assert_allclose(wide @ wide.T, np.identity(3), atol=1e-12)


def test_reference_functions_in_numpy():
    a = np.arange(24.0).reshape(2, 3, 4)
    assert np.array_equal(utils.np_reduce(a, (0, 2), True, np.sum), a.sum((0, 2), keepdims=True))
    assert np.array_equal(utils.np_reduce(a, None, False, np.max), a.max())
    assert utils.np_reduce(a, -1, True, np.sum).shape == (2, 3, 1)
    assert np.array_equal(utils.collapse_sum_like(a, (3, 1)), a.sum((0, 2)).reshape(3, 1))
    assert np.array_equal(utils.assign_each(a, lambda x: x + 1), a + 1)
    assert np.array_equal(utils.assign_each2(a, a, lambda x, y: x * y), a * a)
    assert utils.create_2d_tensor(2, 3).asnumpy().tolist() == [[0, 0, 0], [1, 1, 1]]


# -- distributions ---------------------------------------------------------------------------------------------


def quantile(share):
    return NormalDist().inv_cdf(share) if 0 < share < 1 else -np.inf if share <= 0 else np.inf


def test_p_values_are_those_of_the_chi_square_distribution():
    drawn = np.repeat([0, 1, 2], [30, 40, 50])
    actual, counts, expected = utils.chi_square_check(lambda n: drawn, [0, 1, 2], [1 / 3] * 3, 120)
    assert actual == pytest.approx(np.exp(-2.5))  # two degrees of freedom: the distance is 5
    assert counts.tolist() == [30, 40, 50] and expected.tolist() == pytest.approx([40] * 3)
    assert utils.chi_square_check(lambda n: drawn, [0, 1], [0.5, 0.5], 120)[0] < 1e-9


def normal(mu=0.0):
    return lambda n: mx.random.normal(mu, 1, (n,))


def test_generators_are_checked():
    buckets, probs = utils.gen_buckets_probs_with_ppf(quantile, 5)
    utils.verify_generator(normal(), buckets, probs, nsamples=20000, nrepeat=3)
    with pytest.raises(AssertionError, match="the distribution differs"):
        utils.verify_generator(normal(0.2), buckets, probs, nsamples=20000, nrepeat=3)
    coin = lambda n: mx.random.randint(0, 2, (n,))  # noqa: E731
    utils.verify_generator(coin, [0, 1], [0.5, 0.5], nsamples=20000, nrepeat=3)
    with pytest.raises(AssertionError, match="the distribution differs"):
        utils.verify_generator(lambda n: coin(n) * 2, [0, 1], [0.5, 0.5], nsamples=20000, nrepeat=3)


def test_moments_are_checked():
    assert utils.mean_check(normal(), 0, 1, 20000) and utils.var_check(normal(), 1, 20000)
    assert not utils.mean_check(normal(0.1), 0, 1, 20000)
    assert not utils.var_check(lambda n: normal()(n) * 1.1, 1, 20000)


def test_the_variance_of_a_sample_is_not_that_of_its_population():
    three = lambda n: mx.nd.array([0, 1, 2])  # noqa: E731  (a variance of 1)
    assert utils.var_check(three, 0.51, 3)
    assert not utils.var_check(three, 0.45, 3)


# -- around tests ----------------------------------------------------------------------------------------------


def test_the_environment_is_put_back():
    before = settings.get().kvstore_bigarray_bound
    with utils.environment("FLOWMX_KVSTORE_BIGARRAY_BOUND", "77"):
        assert settings.get().kvstore_bigarray_bound == 77
        with utils.environment({"FLOWMX_KVSTORE_BIGARRAY_BOUND": None}):
            assert "FLOWMX_KVSTORE_BIGARRAY_BOUND" not in os.environ
        assert settings.get().kvstore_bigarray_bound == 77
    assert settings.get().kvstore_bigarray_bound == before
    with pytest.raises(settings.SettingError), utils.environment("FLOWMX_KVSTORE_BIGARRAY_BOUND", "many"):
        pass
    assert settings.get().kvstore_bigarray_bound == before


def test_repetitions():
    calls = []

    @utils.retry(3)
    def fails(times):
        calls.append(times)
        assert len(calls) > times

    fails(2)
    assert len(calls) == 3
    calls.clear()
    with pytest.raises(AssertionError):
        fails(5)
    assert len(calls) == 3


def test_expected_exceptions():
    utils.assert_exception(lambda: mx.nd.ones((2, 3)) + mx.nd.ones((3, 2)), ValueError)
    with pytest.raises(AssertionError, match="did not raise"):
        utils.assert_exception(lambda: None, ValueError)


def test_error_output_is_discarded(capfd):
    with utils.discard_stderr():
        os.write(2, b"hidden")
    os.write(2, b"seen")
    assert capfd.readouterr().err == "seen"


def test_optimizers_are_compared():
    utils.compare_optimizer(mx.optimizer.SGD(momentum=0.9), mx.optimizer.SGD(momentum=0.9), (3, 4), "float32")
    shapes = [(3, 4), (5,)]
    one, other = mx.optimizer.SGD(momentum=0.9), mx.optimizer.SGD(momentum=0.9)
    utils.compare_optimizer(one, other, shapes, "float32", ntensors=2)
    with pytest.raises(AssertionError):
        utils.compare_optimizer(mx.optimizer.SGD(), mx.optimizer.SGD(learning_rate=0.02), (3, 4), "float32")


# -- data sets -------------------------------------------------------------------------------------------------


def write_idx(path, array):
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    with gzip.open(path, "wb") as file:
        file.write(head + array.astype(np.uint8).tobytes())


@pytest.fixture
def mnist(tmp_path):
    for name, count in (("train", 20), ("t10k", 10)):
        images = np.random.randint(0, 256, (count, 28, 28))
        write_idx(tmp_path / f"{name}-images-idx3-ubyte.gz", images)
        write_idx(tmp_path / f"{name}-labels-idx1-ubyte.gz", np.arange(count) % 10)
    return tmp_path


def test_mnist_from_local_files(mnist):
    actual = utils.get_mnist(mnist)
    assert actual["train_data"].shape == (20, 1, 28, 28) and 0.9 < actual["train_data"].max() <= 1
    assert actual["test_label"].tolist() == list(range(10))
    train, test = utils.get_mnist_iterator(5, (784,), root=mnist)
    assert [batch.data[0].shape for batch in train] == [(5, 784)] * 4 and len(list(test)) == 2


def test_mnist_is_found_in_the_current_folder(mnist, monkeypatch):
    monkeypatch.chdir(mnist)
    assert utils.get_mnist()["test_label"].tolist() == list(range(10))


@pytest.mark.usefixtures("offline")
def test_missing_files_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLOWMX_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"copy it to .*datasets/mnist/train-images-idx3-ubyte\.gz"):
        utils.get_mnist()


def test_a_batch_again_and_again():
    real = mx.io.NDArrayIter(np.arange(12.0).reshape(6, 2), np.zeros(6), batch_size=2)
    dummy = utils.DummyIter(real)
    assert dummy.provide_data[0].shape == (2, 2)
    assert [next(dummy).data[0].asnumpy().tolist() for _ in range(5)] == [[[0, 1], [2, 3]]] * 5
