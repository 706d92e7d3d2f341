"""Sparse arrays: MXNet's storage types and answers, on the engine, with gradients, updates, stores and files."""

import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd, gluon
from flowmx.errors import DataError, StorageFallbackWarning
from flowmx.ndarray.sparse import calls
from flowmx.ops.kernels.llvm import row_updates
from flowmx.ops.kernels.llvm import sparse as loops
from flowmx.serialization import safetensors
from tests.rows import rows
from tests.sparse_calls import A, names, recorded

RECORDED = recorded()
ON_STORED = (
    "_scatter",
    "_power",
    "elemwise_div",
    "broadcast_div",
    " / 0",
)  # with zeros, sparse and dense results differ


def of(expression):
    return expression.partition("(")[0] if expression.startswith("nd.") else "others"


@pytest.fixture
def fallbacks():
    """Collect the lines that fallback warnings were issued for."""
    calls._warned.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield lambda: [item for item in caught if item.category is StorageFallbackWarning]
    calls._warned.clear()


@rows("expression", list(RECORDED), of=of)
def test_storage_types_and_values_are_mxnets(expression):
    stype, falls = RECORDED[expression]
    calls._warned.clear()
    space = names(mx)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = eval(expression, space)
    assert result.stype == stype
    fell = any(item.category is StorageFallbackWarning for item in caught)
    assert fell or not falls, "MXNet falls back, and the warning is missing"
    if any(item in expression for item in ON_STORED):
        return
    with mx.settings.override(storage_fallback_log_verbose=False):
        dense = eval(expression, {**space, "c": space["d"], "r": space["d"], "C": space["D"], "R": space["D"]})
    np.testing.assert_allclose(result.asnumpy(), dense.asnumpy(), rtol=1e-5, atol=1e-6)
    if result.stype != "default":
        result.check_format()


def test_the_parts_of_a_matrix():
    x = mx.nd.sparse.csr_matrix(([7, 8, 9], [0, 2, 1], [0, 2, 2, 3]), shape=(3, 4))
    assert (x.stype, x.shape, x.dtype, len(x)) == ("csr", (3, 4), np.float32, 3)
    assert x.asnumpy().tolist() == [[7, 0, 8, 0], [0, 0, 0, 0], [0, 9, 0, 0]]
    assert [item.asnumpy().tolist() for item in (x.data, x.indices, x.indptr)] == [[7, 8, 9], [0, 2, 1], [0, 2, 2, 3]]
    assert x.indices.dtype == x.indptr.dtype == np.int64
    x.data[:] = 0  # a copy
    assert x[2].asnumpy().tolist() == [[0, 9, 0, 0]]
    assert x[-1].asnumpy().tolist() == x[2:].asnumpy().tolist()


def test_elements_by_position_are_summed_and_sorted():
    x = mx.nd.sparse.csr_matrix(([1, 2, 3], ([1, 0, 1], [2, 1, 2])), shape=(2, 3))
    assert x.asnumpy().tolist() == [[0, 2, 0], [0, 0, 4]]


def test_the_parts_of_rows():
    x = mx.nd.sparse.row_sparse_array(([[1, 2], [3, 4]], [1, 4]), shape=(6, 2), dtype="int32")
    assert (x.stype, x.dtype, x.indices.asnumpy().tolist()) == ("row_sparse", np.int32, [1, 4])
    assert mx.nd.sparse.retain(x, mx.nd.array([0, 4])).asnumpy()[4].tolist() == [3, 4]
    x[:] = 2
    assert x.asnumpy().tolist() == [[2, 2]] * 6
    x[:] = mx.nd.zeros((6, 2))
    assert x.indices.shape == (0,)


def test_zeros_of_each_kind():
    for stype in ("csr", "row_sparse"):
        for array in (
            mx.nd.zeros((2, 3), stype=stype),
            mx.nd.empty((2, 3), stype=stype),
            mx.nd.sparse.zeros(stype, (2, 3)),
        ):
            assert array.stype == stype
            assert array.asnumpy().tolist() == [[0, 0, 0]] * 2
            array.check_format()


@pytest.mark.parametrize("stype", ["csr", "row_sparse"])
def test_copies_dtypes_devices_and_pickles(stype):
    x = mx.nd.array(A).tostype(stype)
    there = x.as_in_context(mx.cpu(1))
    assert (there.context, there.stype) == (mx.cpu(1), stype)
    for second in (there, x.copy(), pickle.loads(pickle.dumps(x)), mx.nd.array(x), x.astype("float64"), x.detach()):
        assert second.stype == stype
        np.testing.assert_array_equal(second.asnumpy(), np.array(A, "float32"))
    dense = mx.nd.ones((4, 3))
    x.copyto(dense)
    np.testing.assert_array_equal(dense.asnumpy(), np.array(A, "float32"))
    dense[:] = x * 2
    np.testing.assert_array_equal(dense.asnumpy(), np.array(A, "float32") * 2)


def test_scipy_matrices_are_converted_in_both_directions():
    scipy = pytest.importorskip("scipy.sparse")
    matrix = scipy.random(20, 30, 0.1, "coo", dtype="float64", random_state=1)
    x = mx.nd.array(matrix)
    assert (x.stype, x.dtype) == ("csr", np.float64)
    assert abs(x.asscipy() - matrix).max() == 0


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: mx.nd.array([1, 2]).tostype("csr"), ValueError),
        (lambda: mx.nd.array(A).tostype("csr").tostype("row_sparse"), ValueError),
        (lambda: mx.nd.sparse.csr_matrix((2, 2), shape=(3, 2)), ValueError),
        (lambda: mx.nd.sparse.zeros("other", (2, 2)), ValueError),
        (lambda: mx.nd.array(A).tostype("csr")[::2], ValueError),
        (lambda: mx.nd.array(A).tostype("csr").reshape((3, 4)), mx.MXNetError),
        (lambda: mx.nd.array(A).tostype("csr").size, NotImplementedError),
        (lambda: mx.nd.array(A).tostype("csr").asscalar(), NotImplementedError),
        (lambda: mx.nd.array(A).tostype("csr").copyto(mx.nd.zeros((4, 3), stype="row_sparse")), TypeError),
        (lambda: mx.nd.array(A).tostype("csr").copyto(mx.nd.zeros((3, 4))), mx.MXNetError),
        (lambda: mx.nd.array(A).tostype("csr") + np.ones((4, 3)), TypeError),
        (lambda: mx.sym.Variable("x", stype="csr").simple_bind(mx.sim(0), x=(2, 2)), NotImplementedError),
        (lambda: mx.nd.zeros((2, 2), mx.sim(0), stype="csr"), NotImplementedError),
    ],
)
def test_refuses(make, error):
    with pytest.raises(error):
        make()


@pytest.mark.parametrize(
    "parts",
    [([7, 8, 9], [0, 2, 1], [0, 5, 2, 3]), ([7, 8, 9], [2, 1, 1], [0, 2, 2, 3]), ([7, 8, 9], [1, 2, 1], [0, 2, 2, 4])],
)
def test_invalid_parts_are_detected(parts):
    x = mx.nd.sparse.csr_matrix(parts, shape=(3, 4))
    with pytest.raises(DataError):
        x.check_format()


async def test_sparse_arrays_can_be_awaited_and_carry_errors():
    x = mx.nd.array(A).tostype("csr") * 2
    assert (await x) is x
    poisoned = mx.nd.zeros((4, 3))
    mx.engine.push(lambda: 1 / 0, writes=[poisoned.variable])
    derived = mx.nd.relu(poisoned.tostype("csr"))
    with pytest.raises(ZeroDivisionError):
        await derived


def test_each_line_gets_one_warning(fallbacks):
    x = mx.nd.array(A).tostype("csr")
    for _ in range(3):
        mx.nd.exp(x)
    assert len(fallbacks()) == 1
    with mx.settings.override(storage_fallback_log_verbose=False):
        mx.nd.cos(x)
    assert len(fallbacks()) == 1


def test_states_and_outputs_are_made_sparse_again(fallbacks):
    out = mx.nd.zeros((4, 3), stype="row_sparse")
    mx.nd.elemwise_add(mx.nd.array(A), mx.nd.array(A), out=out)
    np.testing.assert_array_equal(out.asnumpy(), 2 * np.array(A, "float32"))
    weight, n = mx.nd.ones((4, 3)), mx.nd.zeros((4, 3), stype="row_sparse")
    mx.nd.rmsprop_update(weight, mx.nd.array(A).tostype("row_sparse"), n, lr=0.1, out=weight)
    assert n.asnumpy()[0, 1] > 0


# -- gradients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stype", ["row_sparse", None])
def test_the_gradient_of_an_embedding(stype):
    weight = mx.nd.array(np.arange(20).reshape(10, 2))
    weight.attach_grad(stype=stype)
    for _ in range(3):  # a form that would be replayed
        with autograd.record():
            rows_ = mx.nd.Embedding(mx.nd.array([1, 3, 1]), weight, input_dim=10, output_dim=2, sparse_grad=True)
            loss = (rows_ * rows_).sum()
        loss.backward()
    assert weight.grad.stype == (stype or "default")
    expected = np.zeros((10, 2))
    expected[1], expected[3] = [8, 12], [12, 14]
    np.testing.assert_array_equal(weight.grad.asnumpy(), expected)
    if stype:
        assert weight.grad.indices.asnumpy().tolist() == [1, 3]


def test_gradients_are_added_up_by_rows():
    weight = mx.nd.ones((6, 2))
    weight.attach_grad("add", stype="row_sparse")
    for row in (1, 4, 1):
        with autograd.record():
            pair = mx.nd.Embedding(mx.nd.array([row, 0]), weight, input_dim=6, output_dim=2, sparse_grad=True)
            again = mx.nd.Embedding(mx.nd.array([0]), weight, input_dim=6, output_dim=2, sparse_grad=True)
            loss = pair.sum() + again.sum()
        loss.backward()
    assert weight.grad.indices.asnumpy().tolist() == [0, 1, 4]
    assert weight.grad.asnumpy()[:, 0].tolist() == [6, 2, 0, 0, 1, 0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("columns", "width"), [(60, 1), (60, 5), (60, 35), (4000, 20)])
def test_products_by_compiled_loops(dtype, columns, width, monkeypatch):
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((300, columns)) * (rng.random((300, columns)) < 0.1)
    x, right = mx.nd.array(dense, dtype=dtype).tostype("csr"), rng.standard_normal((columns, width))
    left = rng.standard_normal((300, width))
    calls_: list[str] = []
    for name in ("product", "transposed_product"):
        loop = getattr(loops, name)
        monkeypatch.setattr(loops, name, lambda *a, n=name, f=loop: (calls_.append(n), f(*a))[1])
    forward = mx.nd.dot(x, mx.nd.array(right, dtype=dtype))
    back = mx.nd.dot(x, mx.nd.array(left, dtype=dtype), transpose_a=True)
    np.testing.assert_allclose(forward.asnumpy(), dense @ right, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(back.asnumpy(), dense.T @ left, rtol=1e-3, atol=1e-4)
    assert calls_ == ["product", "transposed_product"]


@pytest.mark.parametrize("stored", [[], [0], [1, 3, 5], [0, 1, 2], [0, 1, 2, 3, 4, 5]])
def test_products_with_some_rows_stored(stored):
    rng = np.random.default_rng(0)
    dense = rng.integers(-2, 3, (4, 6)).astype("float32")
    right = np.zeros((6, 3), "float32")
    right[stored] = rng.standard_normal((len(stored), 3))
    rows = mx.nd.sparse.row_sparse_array((right[stored], stored), shape=(6, 3))
    np.testing.assert_allclose(mx.nd.dot(mx.nd.array(dense).tostype("csr"), rows).asnumpy(), dense @ right, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32"])
def test_sums_of_squares_of_other_types(dtype):
    x = mx.nd.sparse.row_sparse_array((mx.nd.array([[1, 2], [3, 4]]).astype(dtype), [0, 2]), shape=(3, 2), dtype=dtype)
    sums = mx.nd._internal._square_sum(x, axis=1)
    assert (sums.dtype == x.dtype, sums.asnumpy().tolist()) == (True, [5, 0, 25])


@pytest.mark.parametrize("head_rows", [[0, 2], [1, 4], [0, 1, 2, 3, 4]])
def test_sums_of_squares_and_their_gradients_by_rows(head_rows):
    stored = [0, 1, 3]
    dense = np.zeros((5, 4), "float32")
    dense[stored] = np.random.default_rng(0).standard_normal((3, 4))
    x = mx.nd.sparse.row_sparse_array((dense[stored], stored), shape=(5, 4))
    for axis, keepdims in ((0, False), (0, True), (1, False), (1, True)):
        sums = mx.nd._internal._square_sum(x, axis=axis, keepdims=keepdims)
        np.testing.assert_allclose(sums.asnumpy(), (dense**2).sum(axis=axis, keepdims=keepdims), rtol=1e-6)
    head = np.zeros((5, 1), "float32")
    head[head_rows] = np.arange(1, len(head_rows) + 1)[:, None]
    back = mx.nd._internal._backward_square_sum(mx.nd.array(head).tostype("row_sparse"), x, axis=1, keepdims=True)
    np.testing.assert_allclose(back.asnumpy(), 2 * dense * head, rtol=1e-6)
    assert back.indices.asnumpy().tolist() == head_rows


def test_a_product_refuses_indices_outside():
    x = mx.nd.sparse.csr_matrix(([1.0] * 6000, [0] * 5999 + [9], [0, 6000]), shape=(1, 5))
    with pytest.raises(DataError, match="expected a column from 0 to 4"):
        mx.nd.dot(x, mx.nd.ones((5, 2))).wait_to_read()


@pytest.mark.parametrize("ways", [{}, {"transpose_a": True}])
def test_the_gradients_of_products(ways):
    x = mx.nd.array([[0, 1, 0, 0], [2, 0, 3, 0], [0, 0, 0, 0]])
    weight = mx.nd.array(np.random.default_rng(1).standard_normal((3 if ways else 4, 2)))
    gradients = []
    for data in (x, x.tostype("csr")):
        weight.attach_grad(stype=None if data is x else "row_sparse")
        with autograd.record():
            loss = (mx.nd.dot(data, weight, **ways) ** 2 if data is x else dense_square(data, weight, ways)).sum()
        loss.backward()
        gradients.append(weight.grad.asnumpy())
    np.testing.assert_allclose(gradients[1], gradients[0], rtol=1e-5)


def dense_square(data, weight, ways):
    return mx.nd.dot(data, weight, forward_stype="default", **ways) ** 2


def test_a_sparse_variable_has_a_sparse_gradient(fallbacks):
    x = mx.nd.array(A).tostype("csr")
    x.attach_grad()
    with autograd.record():
        y = (mx.nd.square(x) * 3).tostype("default").sum()
    y.backward()
    assert x.grad.stype == "csr"
    np.testing.assert_allclose(x.grad.asnumpy(), 6 * np.array(A))


# -- training ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight_stype", ["default", "row_sparse"])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [("sgd", {"momentum": 0.9, "wd": 0.1}), ("adam", {"wd": 0.1}), ("adagrad", {}), ("groupadagrad", {})],
)
def test_a_lazy_update_is_the_dense_one_on_its_rows(name, arguments, weight_stype):
    kind = mx.optimizer.contrib.GroupAdaGrad if name == "groupadagrad" else mx.optimizer.Optimizer.opt_registry[name]
    rng = np.random.default_rng(0)
    start, grad = (rng.standard_normal((2, 3)).astype("float32") for _ in range(2))
    full = np.ones((5, 3), "float32")
    full[[1, 4]] = start
    weight, small = mx.nd.array(full).tostype(weight_stype), mx.nd.array(start)
    lazy, dense = kind(learning_rate=0.1, **arguments), kind(learning_rate=0.1, **arguments)
    states = lazy.create_state(0, weight), dense.create_state(0, small)
    for _ in range(3):
        lazy.update(0, weight, mx.nd.sparse.row_sparse_array((grad, [1, 4]), shape=(5, 3)), states[0])
        dense.update(0, small, mx.nd.array(grad), states[1])
    np.testing.assert_allclose(weight.asnumpy()[[1, 4]], small.asnumpy(), rtol=1e-6)
    np.testing.assert_array_equal(weight.asnumpy()[[0, 2, 3]], 1)


@pytest.mark.parametrize("shape", [(400, 16), (400, 1), (400,), (400, 3, 5)], ids=str)
@pytest.mark.parametrize(("name", "arguments"), [("sgd", {}), ("sgd", {"momentum": 0.9}), ("adam", {})])
def test_lazy_updates_are_one_loop_over_their_rows(name, arguments, shape, monkeypatch):
    elapsed: list[bool] = []
    update = row_updates.update
    monkeypatch.setattr(row_updates, "update", lambda *args: (elapsed.append(update(*args)), elapsed[-1])[1])
    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice(400, 90, replace=False))
    start, grad = (rng.standard_normal(item).astype("float32") for item in (shape, (90, *shape[1:])))
    weights = mx.nd.array(start), mx.nd.array(start[rows])
    kinds = [mx.optimizer.create(name, learning_rate=0.1, wd=0.01, **arguments) for _ in weights]
    states = [kind.create_state(0, weight) for kind, weight in zip(kinds, weights, strict=True)]
    sparse = mx.nd.sparse.row_sparse_array((grad, rows), shape=shape)
    for _ in range(2):
        for kind, weight, gradient, state in zip(kinds, weights, (sparse, mx.nd.array(grad)), states, strict=True):
            kind.update(0, weight, gradient, state)
    np.testing.assert_array_equal(weights[0].asnumpy()[rows], weights[1].asnumpy())
    untouched = np.setdiff1d(np.arange(400), rows)
    np.testing.assert_array_equal(weights[0].asnumpy()[untouched], start[untouched])
    assert elapsed == [True, True]


def test_an_update_that_is_not_lazy_decays_all_rows():
    weight = mx.nd.ones((4, 2))
    sgd = mx.optimizer.SGD(learning_rate=0.5, wd=0.5, lazy_update=False)
    sgd.update(0, weight, mx.nd.sparse.row_sparse_array(([[1, 1]], [2]), shape=(4, 2)), None)
    assert weight.asnumpy()[:, 0].tolist() == [0.75, 0.75, 0.25, 0.75]


@pytest.mark.parametrize("kv", ["local", "device"])
@pytest.mark.parametrize("contexts", [[mx.cpu()], [mx.cpu(0), mx.cpu(1)]])
def test_trainers_sum_and_update_by_rows(kv, contexts):
    def trained(sparse):
        net = gluon.nn.Embedding(8, 2, sparse_grad=sparse)
        net.initialize(mx.init.One(), ctx=contexts)
        trainer = gluon.Trainer(net.collect_params(), "adagrad", {"learning_rate": 0.1}, kvstore=kv)
        for step in range(3):
            with autograd.record():
                losses = [(net(mx.nd.array([step, 5 + i], ctx=ctx)) ** 2).sum() for i, ctx in enumerate(contexts)]
            autograd.backward(losses)
            trainer.step(1)
        return [array.asnumpy() for array in net.weight.list_data()]

    for sparse, dense in zip(trained(True), trained(False), strict=True):
        np.testing.assert_allclose(sparse, dense, rtol=1e-6)


def test_a_sparse_embedding_learns():
    net = gluon.contrib.nn.SparseEmbedding(10, 2)
    net.initialize(mx.init.One())
    with pytest.raises(RuntimeError, match="Trainer"):
        net(mx.nd.array([1]))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.25})
    with autograd.record():
        loss = (net(mx.nd.array([[3, 4], [3, 9]])) ** 2).sum()
    loss.backward()
    assert net.weight.grad().indices.asnumpy().tolist() == [3, 4, 9]
    trainer.step(1)
    after = net.weight.row_sparse_data(mx.nd.arange(10)).asnumpy()[:, 0].tolist()
    assert after == [1, 1, 1, 0, 0.5, 1, 1, 1, 1, 0.5]


def test_a_hybridized_block_takes_a_matrix(fallbacks):
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize(mx.init.One())
    plain = net(mx.nd.array(A)).asnumpy()
    net.hybridize()
    np.testing.assert_allclose(net(mx.nd.array(A).tostype("csr")).asnumpy(), plain, rtol=1e-6)


# -- stores, files, iterators ------------------------------------------------------------------------------


def test_a_store_pulls_the_requested_rows():
    kv = mx.kv.create("local")
    kv.init("w", mx.nd.ones((4, 2)).tostype("row_sparse"))
    out = mx.nd.zeros((4, 2), stype="row_sparse")
    kv.row_sparse_pull("w", out=out, row_ids=mx.nd.array([[3, 0], [3, 3]]))
    assert out.indices.asnumpy().tolist() == [0, 3]
    kv.push("w", [mx.nd.sparse.row_sparse_array(([[2, 2]], [row]), shape=(4, 2)) for row in (1, 1)])
    dense = mx.nd.zeros((4, 2))
    kv.pull("w", out=dense)
    assert dense.asnumpy()[:, 0].tolist() == [0, 4, 0, 0]
    with pytest.warns(UserWarning, match="row_sparse_pull"):
        kv.pull("w", out=out)
    assert out.indices.asnumpy().tolist() == [0, 3]
    kv.row_sparse_pull("w", out=out, row_ids=mx.nd.array([7]))
    with pytest.raises(IndexError, match="row id 7"):
        out.wait_to_read()


def test_files_are_mxnets(tmp_path):
    x = mx.nd.array(A)
    file = tmp_path / "x.params"
    mx.nd.save(str(file), {"c": x.tostype("csr")})
    # As MXNet 1.9.1 writes it: csr, its stored shape and shape, cpu(0), float32, then pointers and columns.
    header = "1201000000000000" + "0" * 16 + "01" + "0" * 14 + "c9fa93f902000000"
    shapes = "010000000400000000000000" + "0200000004000000000000000300000000000000"
    layout = "0100000000000000" + "00000000" + "06000000010000000500000000000000" + "06000000010000000400000000000000"
    assert file.read_bytes().hex().startswith(header + shapes + layout)
    mx.nd.save(str(file), {"c": x.tostype("csr"), "r": x.tostype("row_sparse"), "z": mx.nd.zeros((2, 3), stype="csr")})
    loaded = mx.nd.load(str(file))
    assert [loaded[name].stype for name in "crz"] == ["csr", "row_sparse", "csr"]
    for name in "cr":
        loaded[name].check_format()
        np.testing.assert_array_equal(loaded[name].asnumpy(), x.asnumpy())


def test_files_of_safetensors_have_the_parts(tmp_path):
    x, file = mx.nd.array(A), str(tmp_path / "x.safetensors")
    empty = mx.nd.zeros((2, 3), stype="csr")
    arrays = {"c": x.tostype("csr"), "r": x.tostype("row_sparse"), "d": x, "z": empty}
    mx.nd.save(file, arrays)
    for loaded in (mx.nd.load(file), mx.nd.load_frombuffer(Path(file).read_bytes())):
        assert loaded.keys() == arrays.keys()
        for name, array in arrays.items():
            assert (loaded[name].stype, loaded[name].shape, loaded[name].dtype) == (
                array.stype,
                array.shape,
                array.dtype,
            )
            np.testing.assert_array_equal(loaded[name].asnumpy(), array.asnumpy())
    parts = safetensors.load(file)  # as other programs read it
    np.testing.assert_array_equal(parts["c.indptr"], arrays["c"].indptr.asnumpy())
    assert {name for name in parts if name[0] == "r"} == {"r.data", "r.indices"}
    with pytest.raises(ValueError, match=r"two arrays would have the name 'c\.data'"):
        mx.nd.save(file, {"c": arrays["c"], "c.data": x})
    for shapes in ('{"c": [3]}', '{"q": [2, 3]}', '{"c": "ab"}', "[1]", '{"c": [-4, 3]}', '{"c": [4, 1]}', "{"):
        safetensors.save(file, parts, {"flowmx.sparse": shapes})
        with pytest.raises(ValueError, match=r"sparse|csr"):
            mx.nd.load(file)["c"].asnumpy()


def test_iterators_return_matrices(tmp_path):
    file = tmp_path / "data.svm"
    file.write_text("1 0:.5 3:1\n0 1:2\n1\n")
    batches = list(mx.io.LibSVMIter(data_libsvm=str(file), data_shape=(4,), batch_size=2))
    assert [batch.data[0].stype for batch in batches] == ["csr", "csr"]
    assert batches[0].data[0].asnumpy().tolist() == [[0.5, 0, 0, 1], [0, 2, 0, 0]]
    x = mx.nd.array(A).tostype("csr")
    for shuffle in (False, True):
        iterator = mx.io.NDArrayIter(x, np.arange(4), 2, shuffle=shuffle, last_batch_handle="discard")
        for batch in iterator:
            assert batch.data[0].stype == "csr"
            np.testing.assert_array_equal(
                batch.data[0].asnumpy(), np.array(A, "f")[batch.label[0].asnumpy().astype(int)]
            )


def test_sparse_modules_are_imported_on_first_use(new_python):
    program = "import flowmx, sys; print([each for each in sys.modules if 'sparse.' in each])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(eval(result.stdout)) == {"flowmx.ops.sparse.shapes", "flowmx.kvstore.sparse_sums"} & set(
        eval(result.stdout)
    )
