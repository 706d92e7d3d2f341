"""Distributed stores from a script's view: pushes, pulls, sums, updates and errors."""

import contextlib
import os
import threading

import numpy as np
import pytest

import flowmx as mx
from flowmx.comm.node_errors import NodeGone
from flowmx.engine.runtime import engine
from flowmx.errors import KVStoreError, ShapeError, TypeInferenceError
from flowmx.kvstore import local
from flowmx.kvstore import row_sparse_wire as rows_codec
from flowmx.kvstore.worker import push_compression, push_pull
from tests.jobs import job

WORKERS = 2


@pytest.fixture(autouse=True)
def consume_errors():
    """Consume errors that fail here on purpose, so that no later test's wait raises them."""
    yield
    with contextlib.suppress(Exception):
        mx.nd.waitall()


@pytest.fixture(scope="module", params=[1, 2], ids=["1 server", "2 servers"])
def each(request):
    """Return a function that runs work on two workers; every call is a separate job."""
    servers = request.param

    def run(work, name="dist_sync", **options):
        with job(WORKERS, servers) as cluster:
            return cluster.each(work, name, **options)

    return run


def filled(shape, value, dtype="float32"):
    return mx.nd.full(shape, value, dtype=dtype)


def test_pushes_of_all_workers_are_summed_and_pulled_by_all(each):
    def work(kv):
        kv.init("a", filled((2, 3), 5 + kv.rank))
        out = mx.nd.empty((2, 3))
        kv.pull("a", out=out)
        result = [out.asnumpy()]
        kv.push("a", filled((2, 3), kv.rank + 1))
        kv.pull("a", out=out)
        return [*result, out.asnumpy(), kv.rank, kv.num_workers, kv.type]

    first, second = each(work)
    for start, total, _, workers, kind in (first, second):
        assert (start == 5).all(), "the value of rank 0 counts"
        assert (total == 3).all(), "without an optimizer the sum takes the value's place"
        assert (workers, kind) == (WORKERS, "dist_sync")
    assert {first[2], second[2]} == {0, 1}


def test_many_keys_are_initialized_one_by_one_without_a_wait(each):
    def work(kv):
        for key in range(250):  # more than the concurrent operations of a store
            kv.init(key, filled((3,), key))
        outs = [mx.nd.empty((3,)) for _ in range(250)]
        for key, out in enumerate(outs):
            kv.pull(key, out=out)
        return [float(out.asnumpy()[0]) for out in outs]

    assert each(work) == [list(map(float, range(250)))] * WORKERS


def test_lists_of_keys_and_of_devices_and_targets_of_any_dtype(each):
    def work(kv):
        kv.init([3, 5], [mx.nd.zeros(4), mx.nd.zeros((2, 2))])
        devices = [mx.cpu(0), mx.cpu(1)]
        kv.push([3, 5], [[mx.nd.ones(4, ctx=ctx) for ctx in devices], [mx.nd.ones((2, 2), ctx=ctx) for ctx in devices]])
        outs = [mx.nd.empty(4, ctx=mx.cpu(1)), mx.nd.empty(4, dtype="float64")]
        kv.pull([3, 5], out=[outs, mx.nd.empty((2, 2))])
        return [out.asnumpy() for out in outs]

    for result in each(work):
        assert [array.dtype.name for array in result] == ["float32", "float64"]
        assert all((array == 2 * WORKERS).all() for array in result)


def test_a_big_array_is_split_and_comes_back_whole(each):
    def work(kv):
        with mx.settings.override(kvstore_bigarray_bound=100):
            kv._layout.bound = 100
        value = np.arange(40 * 7, dtype=np.float32).reshape(40, 7)
        kv.init("w", mx.nd.zeros((40, 7)))
        out = mx.nd.empty((40, 7))
        kv.pushpull("w", mx.nd.array(value), out=out)
        part = mx.nd.zeros((80, 7))
        kv.pull("w", out=part[20:60])
        return out.asnumpy(), part.asnumpy(), len(kv._layout["w"])

    expected = WORKERS * np.arange(40 * 7, dtype=np.float32).reshape(40, 7)
    for whole, part, _ in each(work):
        np.testing.assert_array_equal(whole, expected)
        np.testing.assert_array_equal(part[20:60], expected)
        assert not part[:20].any() and not part[60:].any()


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "uint8"])
def test_values_of_other_dtypes(dtype):
    def work(kv):
        kv.init("a", filled((3,), 1, dtype))
        out = mx.nd.empty((3,), dtype=dtype)
        kv.pushpull("a", filled((3,), 2, dtype), out=out)
        return out.asnumpy()

    with job(WORKERS, 1) as cluster:
        for result in cluster.each(work):
            assert result.dtype.name == dtype
            assert result.tolist() == [4, 4, 4]


def test_chosen_rows_of_an_embedding(each):
    def work(kv):
        table = np.arange(30 * 4, dtype=np.float32).reshape(30, 4)
        kv._layout.bound = 50
        kv.init("table", mx.nd.array(table))
        out = mx.nd.ones((30, 4))
        kv.row_sparse_pull("table", out=out, row_ids=mx.nd.array([29, 3, 3, 17], dtype="int64"))
        wrong = mx.nd.zeros((30, 4))
        kv.row_sparse_pull("table", out=wrong, row_ids=mx.nd.array([30]))
        with pytest.raises(IndexError, match="row 30 of key 'table' is out of range: it has 30 rows"):
            wrong.wait_to_read()
        kv._barrier()
        return out.asnumpy(), table

    for result, table in each(work):
        expected = np.zeros_like(table)
        expected[[3, 17, 29]] = table[[3, 17, 29]]
        np.testing.assert_array_equal(result, expected)


def test_servers_update_by_an_optimizer_whose_learning_rate_may_change(each):
    def work(kv):
        optimizer = mx.optimizer.SGD(learning_rate=0.5, rescale_grad=1 / WORKERS)
        kv.init("w", mx.nd.ones(3))
        kv.set_optimizer(optimizer)
        out = mx.nd.empty(3)
        kv.pushpull("w", mx.nd.ones(3), out=out)
        result = [out.asnumpy()[0]]
        optimizer.set_learning_rate(0.25)
        kv._refresh()
        kv.pushpull("w", mx.nd.ones(3), out=out)
        return [*result, out.asnumpy()[0]]

    assert each(work) == [[0.5, 0.25]] * WORKERS


def test_states_are_saved_and_loaded_and_are_those_of_one_process(each, tmp_path):
    def work(kv):
        kv._layout.bound = 6
        kv.init(["w", "b"], [mx.nd.ones((4, 2)), mx.nd.ones(2)])
        kv.set_optimizer(mx.optimizer.Adam(learning_rate=0.1))
        out = [mx.nd.empty((4, 2)), mx.nd.empty(2)]
        for _ in range(3):
            kv.pushpull(["w", "b"], [mx.nd.ones((4, 2)), mx.nd.ones(2)], out=out)
        file = tmp_path / f"{os.getpid()}-{kv.rank}.states"
        kv.save_optimizer_states(file)
        kv._barrier()
        kv.load_optimizer_states(file)
        kv.pushpull(["w", "b"], [mx.nd.ones((4, 2)), mx.nd.ones(2)], out=out)
        return file.read_bytes(), out[0].asnumpy()

    (first, weight), (second, _) = each(work)
    assert first == second
    updater = mx.optimizer.get_updater(mx.optimizer.Adam(learning_rate=0.1))
    expected = mx.nd.ones((4, 2))
    for step in range(4):
        updater("w", mx.nd.ones((4, 2)) * WORKERS, expected)
        if step < 3:
            updater("b", mx.nd.ones(2) * WORKERS, mx.nd.ones(2))
        if step == 2:
            ours = mx.optimizer.get_updater(mx.optimizer.Adam(learning_rate=0.1))
            ours.set_states(first)
            for flowmx_result, theirs in zip(ours.states["w"], updater.states["w"], strict=True):
                np.testing.assert_array_equal(flowmx_result.asnumpy(), theirs.asnumpy())
    np.testing.assert_array_equal(weight, expected.asnumpy())


@pytest.mark.parametrize(("params", "expected"), [({"type": "2bit", "threshold": 0.5}, 1.0), ({"type": "bf16"}, 1.5)])
def test_compressed_gradients_keep_a_residual(each, params, expected):
    def work(kv):
        kv._layout.bound = 10
        kv.set_gradient_compression(params)
        kv.init("w", mx.nd.zeros((20,)))
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
        total, out = np.zeros(20), mx.nd.empty((20,))
        for _ in range(4):
            kv.push("w", filled((20,), 0.75))
            kv.pull("w", out=out)
            total = -out.asnumpy()
        return total

    for result in each(work):
        first = 4 * WORKERS * 0.75 if params["type"] == "bf16" else WORKERS * (0.5 * 4)
        assert (result == first).all()


def test_compression_wants_float32():
    def work(kv):
        kv.set_gradient_compression({"type": "fp16"})
        kv.init("w", mx.nd.zeros(2, dtype="float64"))
        with pytest.raises(TypeInferenceError, match="float64, expected float32"):
            kv.push("w", mx.nd.ones(2, dtype="float64"))

    with job(1, 1) as cluster:
        cluster.each(work)


def test_an_asynchronous_store_applies_each_push_separately(each):
    def work(kv):
        kv.init("w", mx.nd.zeros(3))
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
        for _ in range(5 * (kv.rank + 1)):
            kv.push("w", mx.nd.ones(3))
        out = mx.nd.empty(3)
        kv._barrier()
        kv.pull("w", out=out)
        return out.asnumpy().tolist(), kv.stats()["mode"]

    assert each(work, "dist_async") == [([-15.0] * 3, "async")] * WORKERS


def test_staleness_is_bounded_and_reported(each):
    def work(kv):
        kv.init("w", mx.nd.zeros(3))
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
        for _ in range(30):
            kv.push("w", mx.nd.ones(3))
        kv._barrier()
        return kv.stats()["largest_lag"]

    lags = each(work, "dist_async", max_staleness=2)
    assert all(lag <= 2 for lag in lags)


def test_an_asynchronous_push_without_an_optimizer_is_refused_with_a_reason():
    def work(kv):
        kv.init("w", mx.nd.zeros(3))
        out = mx.nd.empty(3)
        kv.pushpull("w", mx.nd.ones(3), out=out)
        with pytest.raises(KVStoreError, match=r"pushpull of 'w' was refused: .*call set_optimizer first"):
            out.wait_to_read()

    with job(1, 1) as cluster:
        cluster.each(work, "dist_async")


def test_uneven_data_blocks_no_worker(each):
    def work(kv):
        kv.init("w", mx.nd.zeros(2))
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
        out = mx.nd.empty(2)
        for _ in range(2):
            for _ in range(10 - kv.rank):
                kv.pushpull("w", mx.nd.ones(2), out=out)
            kv._barrier()
        kv.pull("w", out=out)
        return out.asnumpy()[0]

    assert each(work) == [-38.0] * WORKERS


def test_a_leaving_worker_blocks_no_other(each):
    def work(kv):
        kv.init("w", mx.nd.zeros(2))
        out = mx.nd.empty(2)
        for _ in range(3 + 4 * kv.rank):
            kv.pushpull("w", mx.nd.ones(2), out=out)
        return out.asnumpy()[0]

    assert each(work)[1] == 1.0


def test_arrays_may_be_changed_once_a_push_is_enqueued(each):
    def work(kv):
        shapes = {"small": (4,), "large": (300, 100)}
        kv.init(list(shapes), [mx.nd.zeros(shape) for shape in shapes.values()])
        outs = []
        for key, shape in shapes.items():
            grad, out = filled(shape, 2), mx.nd.empty(shape)
            kv.push(key, grad)
            grad[:] = 100
            kv.pull(key, out=out)
            outs.append(out)
        return [out.asnumpy() for out in outs]

    for result in each(work):
        assert all((array == 4).all() for array in result)


def test_gradients_may_be_replaced_by_their_sum(each):
    def work(kv):
        kv.init("w", mx.nd.zeros((200, 200)))
        grad = filled((200, 200), kv.rank)
        kv.pushpull("w", grad)
        return grad.asnumpy()

    assert all((result == 1).all() for result in each(work))


def sparse_rows(shape, numbers, seed, dtype="float32"):
    rows = np.random.default_rng(seed).standard_normal((len(numbers), *shape[1:])).astype(dtype)
    return mx.nd.sparse.row_sparse_array((rows, numbers), shape=shape, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pushed_rows_are_summed_as_dense_gradients_are_to_the_bit(each, dtype):
    shape, pushed = (30, 4), {0: [[2, 5, 29], []], 1: [[5, 17], [0, 29]]}

    def work(kv):
        kv._layout.bound = 50  # the table is cut into parts
        for name in "ad":
            kv.init(name, mx.nd.zeros(shape, dtype=dtype))
        results = []
        for step in range(2):
            gradient = sparse_rows(shape, pushed[kv.rank][step], 10 * kv.rank + step, dtype)
            kv.push("a", gradient)
            kv.push("d", gradient.tostype("default"))
            for name in "ad":
                out = mx.nd.empty(shape, dtype=dtype)
                kv.pull(name, out=out)
                results.append(out.asnumpy())
            rows = mx.nd.sparse.zeros("row_sparse", shape, dtype=dtype)
            kv.row_sparse_pull("a", out=rows, row_ids=mx.nd.array([29, 5, 1, 5]))
            results.append((rows.indices.asnumpy().tolist(), rows.asnumpy()))
        return results

    for first, first_dense, first_rows, second, second_dense, second_rows in each(work):
        np.testing.assert_array_equal(first, first_dense)
        np.testing.assert_array_equal(second, second_dense)
        for whole, (numbers, rows) in ((first, first_rows), (second, second_rows)):
            assert numbers == [1, 5, 29]
            np.testing.assert_array_equal(rows[numbers], whole[numbers])
            assert not np.delete(rows, numbers, 0).any()


TOUCHED = {0: [[2, 5, 29], [], [5]], 1: [[5, 17], [0, 29], [5]]}


def trained_by_rows(kv, optimizer, weight, dense=False):
    """Return the value on the servers after three steps with the rows of ``TOUCHED``."""
    kv._layout.bound = 50  # the table is cut into parts
    kv.init("w", mx.nd.array(weight))
    kv.set_optimizer(optimizer)
    for step in range(3):
        gradient = sparse_rows(weight.shape, TOUCHED[kv.rank][step], 10 * kv.rank + step)
        kv.push("w", gradient.tostype("default") if dense else gradient)
    out = mx.nd.empty(weight.shape)
    kv.pull("w", out=out)
    return out.asnumpy()


def sgd_by_hand(weight, rows, gradient, state):
    momentum = state.setdefault("momentum", np.zeros_like(weight))
    momentum[rows] = 0.9 * momentum[rows] - 0.1 * (gradient[rows] + 0.5 * weight[rows])
    weight[rows] += momentum[rows]


def adagrad_by_hand(weight, rows, gradient, state):
    history = state.setdefault("history", np.zeros_like(weight))
    history[rows] += gradient[rows] ** 2
    weight[rows] -= 0.1 * gradient[rows] / np.sqrt(history[rows] + 1e-7)


def adam_by_hand(weight, rows, gradient, state):
    mean, var = state.setdefault("moments", np.zeros((2, *weight.shape)))
    t = state["t"] = state.get("t", 0) + 1
    full = gradient[rows] + 0.5 * weight[rows]
    mean[rows] = 0.9 * mean[rows] + 0.1 * full
    var[rows] = 0.999 * var[rows] + 0.001 * full**2
    weight[rows] -= 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * mean[rows] / (np.sqrt(var[rows]) + 1e-8)


@pytest.mark.parametrize(
    ("make", "by_hand"),
    [
        (lambda: mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, wd=0.5, rescale_grad=1), sgd_by_hand),
        (lambda: mx.optimizer.AdaGrad(learning_rate=0.1, rescale_grad=1), adagrad_by_hand),
        (lambda: mx.optimizer.Adam(learning_rate=0.1, wd=0.5, rescale_grad=1), adam_by_hand),
    ],
    ids=["sgd", "adagrad", "adam"],
)
def test_servers_update_only_the_pushed_rows(each, make, by_hand):
    weight = np.random.default_rng(0).standard_normal((30, 4)).astype(np.float32)
    expected, state = weight.astype(np.float64), {}
    for step in range(3):
        gradient = sum(sparse_rows((30, 4), TOUCHED[rank][step], 10 * rank + step).asnumpy() for rank in TOUCHED)
        by_hand(expected, sorted({*TOUCHED[0][step], *TOUCHED[1][step]}), gradient, state)
    for result in each(lambda kv: trained_by_rows(kv, make(), weight)):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(result[[1, 3, 28]], weight[[1, 3, 28]])


@pytest.mark.parametrize(
    "make",
    [
        lambda: mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, wd=0.5, lazy_update=False),
        lambda: mx.optimizer.RMSProp(),
    ],
)
@pytest.mark.filterwarnings("error")
def test_servers_without_lazy_updates_update_all_rows(each, make):
    weight = np.random.default_rng(0).standard_normal((30, 4)).astype(np.float32)
    by_rows = each(lambda kv: trained_by_rows(kv, make(), weight))
    dense = each(lambda kv: trained_by_rows(kv, make(), weight, dense=True))
    np.testing.assert_array_equal(by_rows, dense)


def test_rows_of_one_worker_and_a_dense_gradient_of_another_are_summed(each):
    def work(kv):
        kv.init("w", mx.nd.zeros((6, 2)))
        kv.push("w", sparse_rows((6, 2), [1, 4], 1) if kv.rank else mx.nd.ones((6, 2)))
        out = mx.nd.empty((6, 2))
        kv.pull("w", out=out)
        return out.asnumpy()

    for result in each(work):
        np.testing.assert_array_equal(result, 1 + sparse_rows((6, 2), [1, 4], 1).asnumpy())


def test_only_the_rows_are_sent(monkeypatch):
    sent = []
    monkeypatch.setattr(
        push_compression.row_sparse_wire,
        "encode",
        lambda *a, encode=rows_codec.encode: sent.append(encode(*a)) or sent[-1],
    )

    def work(kv):
        kv.init("a", mx.nd.zeros((100_000, 8)))
        out = mx.nd.sparse.zeros("row_sparse", (100_000, 8))
        kv.push("a", [sparse_rows((100_000, 8), [3], 1), sparse_rows((100_000, 8), [3, 99_999], 2)])
        kv.row_sparse_pull("a", out=out, row_ids=mx.nd.array([3, 99_999, 7], dtype="int64"))
        return out.asnumpy()[[3, 99_999]]

    with job(1, 1) as cluster:
        (result,) = cluster.each(work)
    rows = [sparse_rows((100_000, 8), numbers, seed).asnumpy() for numbers, seed in (([3], 1), ([3, 99_999], 2))]
    np.testing.assert_array_equal(result, (rows[0] + rows[1])[[3, 99_999]])
    assert sum(item.nbytes for item in sent) == 2 * (8 + 8 * 4)


def test_other_sparse_values_are_sent_as_dense_ones(each, monkeypatch):
    monkeypatch.setattr(push_pull, "_warned", set())
    monkeypatch.setattr(local, "_warned", set())

    def work(kv):
        kv.init("a", mx.nd.sparse.zeros("csr", (4, 2)))
        kv.push("a", sparse_rows((4, 2), [kv.rank], 1).tostype("default").tostype("csr"))
        out = mx.nd.empty((4, 2))
        kv.pull("a", out=out)
        sparse = mx.nd.sparse.zeros("row_sparse", (4, 2))
        kv.pull("a", out=sparse)
        with pytest.raises(NotImplementedError, match="is csr"):
            kv.row_sparse_pull("a", out=mx.nd.sparse.zeros("csr", (4, 2)), row_ids=mx.nd.array([1]))
        return out.asnumpy().any(axis=1).tolist(), sparse.asnumpy().any()

    with (
        pytest.warns(UserWarning, match="sparse arrays were skipped"),
        pytest.warns(UserWarning, match="as dense ones"),
    ):
        results = each(work)
    assert all(result == ([True] * WORKERS + [False] * (4 - WORKERS), False) for result in results)


def test_bad_arguments_are_refused_at_the_call():
    def work(kv):
        kv.init("w", mx.nd.zeros((2, 2)))
        with pytest.raises(KVStoreError, match="'w' is already initialized"):
            kv.init("w", mx.nd.zeros((2, 2)))
        with pytest.raises(KVStoreError, match="either all int or all str"):
            kv.init(3, mx.nd.zeros((2, 2)))
        with pytest.raises(KVStoreError, match="unknown key 'v'"):
            kv.push("v", mx.nd.zeros((2, 2)))
        with pytest.raises(ShapeError, match=r"\(3,\), expected \(2, 2\)"):
            kv.push("w", mx.nd.zeros(3))
        with pytest.raises(TypeError, match=r"expected an mx\.optimizer\.Optimizer"):
            kv.set_optimizer("sgd")
        with pytest.raises(KVStoreError, match="run no code from workers"):
            kv.set_updater(lambda key, merged, stored: None)
        with pytest.raises(KVStoreError, match="no optimizer"):
            kv.save_optimizer_states("nowhere")

    with job(1, 1) as cluster:
        cluster.each(work)


def test_a_push_of_another_dtype_raises_where_it_is_awaited():
    def work(kv):
        kv.init("w", mx.nd.zeros(2))
        out = mx.nd.zeros(2)
        kv.pushpull("w", mx.nd.ones(2, dtype="float64"), out=out)
        with pytest.raises(KVStoreError, match=r"float64 .*which is float32"):
            out.wait_to_read()

    with job(1, 1) as cluster:
        cluster.each(work)


def test_a_pull_after_a_push_of_another_dtype_gives_the_reason():
    def work(kv):
        kv.init("w", mx.nd.zeros(2))
        out, good = mx.nd.zeros(2), mx.nd.zeros(2)
        kv.push("w", mx.nd.ones(2, dtype="float64"))
        kv.pull("w", out=out)
        with pytest.raises(KVStoreError, match=r"float64 .*which is float32"):
            out.wait_to_read()
        kv.pushpull("w", mx.nd.ones(2), out=good)
        return good.asnumpy().tolist()

    with job(1, 1) as cluster:
        assert cluster.each(work) == [[1.0, 1.0]]


def test_a_failed_gradient_is_not_pushed_and_gives_the_reason():
    def work(kv):
        kv.init("w", mx.nd.zeros(2))
        out, good = mx.nd.zeros(2), mx.nd.zeros(2)
        broken = mx.nd.zeros(2)

        def fail():
            raise ZeroDivisionError("in the backward pass")

        mx.engine.push(fail, writes=[broken])
        kv.push("w", broken)
        kv.pull("w", out=out)
        with pytest.raises(ZeroDivisionError, match="in the backward pass"):
            out.wait_to_read()
        kv.pushpull("w", mx.nd.ones(2), out=good)
        return good.asnumpy().tolist()

    with job(1, 1) as cluster:
        assert cluster.each(work) == [[1.0, 1.0]]


def test_a_closed_store_raises():
    with job(1, 1) as cluster:
        kv = cluster.store()
        kv.init("w", mx.nd.zeros(2))
        kv.close()
        kv.close()
        with pytest.raises(KVStoreError, match="has been closed"):
            kv.push("w", mx.nd.ones(2))


def test_a_closed_store_leaves_no_actor_with_the_engine():
    with job(1, 1) as cluster:
        kv = cluster.store()
        kv.init("w", mx.nd.zeros(2))
        kv.push("w", mx.nd.ones(2))
        mx.nd.waitall()
        assert kv._session.actor in engine.actors.values()
        kv.close()
        assert kv._session.actor not in engine.actors.values()


def test_under_stop_a_failed_worker_ends_the_others_waits_by_name():
    with job(2, 1) as cluster:
        ready = threading.Barrier(2)

        def survive(kv):
            kv.init("w", mx.nd.zeros(2))
            out = mx.nd.zeros(2)
            kv.pushpull("w", mx.nd.ones(2), out=out)
            out.wait_to_read()
            kv.pushpull("w", mx.nd.ones(2), out=out)
            ready.wait()
            out.wait_to_read()

        def fail(kv):
            kv.init("w", mx.nd.zeros(2))
            out = mx.nd.zeros(2)
            kv.pushpull("w", mx.nd.ones(2), out=out)
            out.wait_to_read()
            ready.wait()
            raise RuntimeError("out of data")

        survivor, culprit = cluster.begin(survive, rank=0), cluster.begin(fail, rank=1)
        with pytest.raises(RuntimeError, match="out of data"):
            culprit.result(30)
        with pytest.raises(NodeGone, match=r"worker 1 .*out of data"):
            survivor.result(30)


def test_a_store_works_under_the_naive_engine():
    def work(kv):
        kv.init("w", mx.nd.zeros(2))
        out = mx.nd.zeros(2)
        kv.push("w", mx.nd.ones(2))
        kv.pull("w", out=out)
        return out.asnumpy().tolist()

    with job(1, 1) as cluster, mx.engine.using(engine_type="NaiveEngine"):
        assert cluster.each(work) == [[1.0, 1.0]]


async def test_a_store_is_awaited_in_a_coroutine():
    with job(1, 1) as cluster, cluster.store() as kv:
        kv.init("w", mx.nd.zeros(2))
        await kv.barrier()
        out = mx.nd.zeros(2)
        kv.pushpull("w", mx.nd.ones(2), out=out)
        await out
        await kv.ready()
        assert kv.step == 1
