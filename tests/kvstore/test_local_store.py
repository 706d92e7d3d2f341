"""Key-value stores in one process: values as in MXNet, forms of keys, rows, updaters, states and errors."""

import inspect
import json
import re

import numpy as np
import pytest

import flowmx as mx
from flowmx import devices
from flowmx.devices import Device, Generator
from flowmx.engine import ThreadActor
from flowmx.kvstore import device_sums
from flowmx.settings import SettingError
from tests.fixtures import record_kvstore as recorded

EXPECTED = json.loads(recorded.FILE.read_text())
NAMES = ["local", "device"]
SHAPE = (2, 3)


def ones(count=1, factor=1.0, shape=SHAPE):
    return [mx.nd.full(shape, factor, ctx=mx.cpu(index)) for index in range(count)]


def value(kv, key, shape=SHAPE):
    out = mx.nd.zeros(shape)
    kv.pull(key, out=out)
    return out.asnumpy()


@pytest.fixture(params=NAMES)
def kv(request):
    return mx.kv.create(request.param)


@pytest.mark.parametrize("name", recorded.STORES)
def test_equals_mxnet(name):
    result = recorded.play(mx, name)
    assert len(result) == len(EXPECTED[name])
    for ours, theirs in zip(result, EXPECTED[name], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("name", ["device", "local_allreduce_device"])
def test_sums_have_the_bits_that_mxnet_sums_have_on_devices(name):
    adams = range(33, 42)
    for index, (ours, theirs) in enumerate(zip(recorded.play(mx, name), EXPECTED[name], strict=True)):
        assert index in adams or np.array_equal(np.float32(ours), np.float32(theirs))


@pytest.mark.parametrize("name", recorded.STORES)
def test_has_type_rank_and_representation(name):
    kv = mx.kv.create(name.upper())
    assert (kv.type, kv.rank, kv.num_workers) == (name, 0, 1)
    assert kv.is_capable("optimizer")
    assert isinstance(kv, mx.kv.KVStore)
    assert repr(kv) == f"<KVStore {name!r} of 0 keys>"


# The methods of MXNet 1.9.1's KVStore, with their arguments.
SIGNATURES = {
    "_barrier": "",
    "_set_updater": "updater",
    "broadcast": "key value out priority",
    "init": "key value",
    "is_capable": "capability",
    "load_optimizer_states": "fname",
    "pull": "key out priority ignore_sparse",
    "push": "key value priority",
    "pushpull": "key value out priority",
    "row_sparse_pull": "key out priority row_ids",
    "save_optimizer_states": "fname dump_optimizer",
    "set_gradient_compression": "compression_params",
    "set_optimizer": "optimizer",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_methods_take_mxnets_arguments(kv, name):
    method = getattr(kv, name)
    assert " ".join(inspect.signature(method).parameters) == SIGNATURES[name]
    assert inspect.getdoc(method)


def test_the_default_is_local():
    assert mx.kv.create().type == "local"


# -- values ------------------------------------------------------------------------------------------------


def test_a_store_keeps_copies(kv):
    inputs = mx.nd.ones(SHAPE)
    kv.init("a", inputs)
    inputs[:] = 5
    assert (value(kv, "a") == 1).all()
    pushed = ones()[0]
    kv.push("a", pushed)
    pushed[:] = 5
    assert (value(kv, "a") == 1).all()


def test_an_array_may_be_pushed_several_times_at_once(kv):
    kv.init("a", mx.nd.zeros(SHAPE))
    (same,) = ones(factor=3)
    kv.pushpull("a", [same] * 4)
    assert (same.asnumpy() == 12).all()
    kv.push("a", [same] * 3)
    assert (value(kv, "a") == 36).all()


def test_slices_are_pushed_and_pulled_like_arrays(kv):
    kv.init("a", mx.nd.zeros((2, 2)))
    whole = mx.nd.array(np.arange(12).reshape(6, 2))
    kv.push("a", [whole[0:2], whole[1:3], whole[4:6]])
    assert value(kv, "a", (2, 2)).tolist() == [[10, 13], [16, 19]]
    kv.pushpull("a", [whole[0:2], whole[1:3], whole[4:6]], out=whole[2:4])
    assert whole.asnumpy().tolist() == [[0, 1], [2, 3], [10, 13], [16, 19], [8, 9], [10, 11]]
    kv.pushpull("a", [whole[0:2], whole[4:6]], out=whole[1:3])
    assert whole.asnumpy().tolist() == [[0, 1], [8, 10], [12, 14], [16, 19], [8, 9], [10, 11]]


def test_dtypes_are_converted_on_the_way(kv):
    kv.init("a", mx.nd.zeros(SHAPE))
    kv.push("a", [one.astype("float16") for one in ones(2, 0.5)])
    assert (value(kv, "a") == 1).all()
    out = mx.nd.zeros(SHAPE, dtype="int32")
    kv.pull("a", out=out)
    assert (out.asnumpy() == 1).all()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
def test_any_shape(kv, shape):
    kv.init(7, mx.nd.zeros(shape))
    kv.push(7, ones(3, 2, shape))
    assert (value(kv, 7, shape) == 6).all()


@pytest.mark.parametrize("pieces", [1, 3])
def test_arrays_in_another_order_of_memory(kv, pieces):
    inputs = np.arange(24, dtype="float32").reshape(4, 6)
    array = mx.nd.array(inputs)[:, ::2]
    with mx.engine.using(kvstore_bigarray_bound=2, kvstore_reduction_nthreads=pieces):
        kv.init(7, mx.nd.zeros((4, 3)))
        kv.push(7, [array, array.as_in_context(mx.cpu(1)), array])
        assert np.array_equal(value(kv, 7, (4, 3)), 3 * inputs[:, ::2])


# -- rows --------------------------------------------------------------------------------------------------


def test_rows_are_pulled_as_in_mxnets_documentation(kv):
    kv.init("3", mx.nd.array([[1, 1], [2, 2], [3, 3]]))
    out = mx.nd.full((3, 2), 9)
    for ids, expected in (([0, 2], [1, 0, 3]), ([2, 2], [0, 0, 3]), ([1, 0], [1, 2, 0]), ([], [0, 0, 0])):
        kv.row_sparse_pull("3", out=out, row_ids=mx.nd.array(ids, dtype="int64"))
        assert out.asnumpy()[:, 1].tolist() == expected


def test_rows_of_several_keys_on_several_devices(kv):
    kv.init(["a", "b"], [mx.nd.array([1, 2, 3]), mx.nd.array([4, 5, 6])])
    outs = [[mx.nd.zeros(3, ctx=mx.cpu(index)) for index in range(2)] for _ in range(2)]
    one, other = mx.nd.array([0]), mx.nd.array([1, 2], ctx=mx.cpu(1))
    kv.row_sparse_pull(["a", "b"], out=outs, row_ids=[one, [one, other]])
    assert [out.asnumpy().tolist() for out in outs[0] + outs[1]] == [[1, 0, 0], [1, 0, 0], [4, 0, 0], [0, 5, 6]]
    kv.row_sparse_pull(["a", "b"], out=outs, row_ids=other)
    assert [out.asnumpy().tolist() for out in outs[0] + outs[1]] == [[0, 2, 3], [0, 2, 3], [0, 5, 6], [0, 5, 6]]


@pytest.mark.parametrize("wrong", [3, -1])
def test_invalid_rows_raise_where_the_result_is_read(kv, wrong):
    kv.init("a", mx.nd.zeros(3))
    out = mx.nd.zeros(3)
    kv.row_sparse_pull("a", out=out, row_ids=mx.nd.array([0, wrong]))
    with pytest.raises(IndexError, match=f"row id {wrong} for key 'a' is out of range: it has 3 rows"):
        out.asnumpy()


# -- updating ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [3, "3"])
def test_an_updater_sees_key_sum_and_value(kv, key):
    log = []

    def update(name, merged, stored):
        log.append(name)
        stored += merged * 2

    kv.init(key, mx.nd.ones(SHAPE))
    kv.set_updater(update)
    kv.push(key, ones(4))
    assert (value(kv, key) == 9).all()
    kv.set_updater(None)
    kv.push(key, ones(4))
    assert (value(kv, key) == 4).all()
    assert log == [key]


def test_an_updater_may_write_to_its_arguments(kv):
    def update(name, merged, stored):
        merged *= 2
        merged.copyto(stored)

    kv.init(1, mx.nd.zeros(SHAPE))
    kv.set_updater(update)
    for _ in range(2):
        kv.push(1, ones(3))
    assert (value(kv, 1) == 6).all()


def test_an_error_in_an_updater_is_the_callers(kv):
    kv.init(1, mx.nd.zeros(SHAPE))
    kv.set_updater(lambda key, merged, stored: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        kv.push(1, ones())


async def test_optimizer_states_are_saved_and_loaded(kv, tmp_path):
    def steps(store, count):
        for step in range(count):
            store.push("w", ones(2, 1 + step))

    kv.init("w", mx.nd.ones(SHAPE))
    kv.set_optimizer(mx.optimizer.Adam(learning_rate=0.1))
    steps(kv, 2)
    await kv.ready()
    kv.save_optimizer_states(tmp_path / "states", dump_optimizer=True)
    weight = mx.nd.zeros(SHAPE)
    kv.pull("w", out=weight)
    again = mx.kv.create(kv.type)
    again.init("w", weight)
    again.set_optimizer(mx.optimizer.SGD())
    again.load_optimizer_states(tmp_path / "states")
    results = []
    for store in (kv, again):
        steps(store, 2)
        store.pull("w", out=weight)
        results.append((await weight).asnumpy())
    assert np.array_equal(*results)


def test_the_residual_is_added_to_a_later_push():
    kv = mx.kv.create("device")
    kv.init("a", mx.nd.zeros(4))
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    sums = []
    for _ in range(3):
        kv.push("a", [mx.nd.array([0.3, 0.6, -0.3, 2]), mx.nd.array([0.2, -0.7, 0.1, 0], ctx=mx.cpu(1))])
        sums.append(value(kv, "a", (4,)).tolist())
    assert sums == [[0, 0, 0, 0.5], [0.5, 0, -0.5, 0.5], [0.5, 0, 0, 0.5]]


# -- coroutines --------------------------------------------------------------------------------------------


async def test_nothing_blocks_in_a_coroutine(kv):
    kv.init("a", mx.nd.zeros((400, 400)))
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    weights = ones(2, 0, (400, 400))
    for _ in range(3):
        kv.pushpull("a", ones(2, 1, (400, 400)), out=weights)
    await kv.barrier()
    for weight in weights:
        assert ((await weight).asnumpy() == -6).all()
    await kv.ready()


# -- devices with separate memory ------------------------------------------------------------------------------


class Apart(Device):
    """A device whose arrays only its operations may read."""

    class Memory(np.ndarray):
        place: mx.Context | None = None

    xp = np

    def __init__(self, context):
        self.context = context
        self.compute = ThreadActor(repr(context))
        self.generator = Generator(repr(context))

    def allocate(self, shape, dtype):
        instance = np.ndarray.__new__(self.Memory, shape, dtype)
        instance.place = self.context
        return instance

    def copy_actor(self, source):
        return self.compute

    def copy(self, source, target):
        np.copyto(target, source)

    def to_host(self, array):
        return np.asarray(array)

    def memory_info(self):
        return 0, 0


def place(array):
    """Return the device of an array or a part of it; None for the CPU."""
    while isinstance(array, np.ndarray):
        if getattr(array, "place", None) is not None:
            return array.place
        array = array.base
    return None


@pytest.fixture
def apart():
    """Return three contexts of such devices."""
    contexts = [mx.Context("sim", index) for index in range(3)]
    with devices.replace_devices({context: Apart(context) for context in contexts}):
        yield contexts


@pytest.mark.parametrize(
    ("name", "bound", "busy"), [("local", 1, 0), ("local", 1000, 0), ("device", 1, 3), ("device", 1000, 1)]
)
def test_sums_over_devices_without_peer_access(apart, name, bound, busy, monkeypatch):
    log = []
    add = device_sums._add
    monkeypatch.setattr(
        device_sums, "_add", lambda inputs, outputs: (log.append([*inputs, *outputs]), add(inputs, outputs))
    )
    with mx.engine.using(kvstore_bigarray_bound=bound):
        kv = mx.kv.create(name)
        kv.init("a", mx.nd.zeros(SHAPE))
        values = [mx.nd.full(SHAPE, 1 + index).copyto(context) for index, context in enumerate(apart)]
        outs = [mx.nd.zeros(SHAPE, ctx=context) for context in apart]
        kv.pushpull("a", values, out=outs)
        assert all((out.asnumpy() == 6).all() for out in outs)
        kv.set_updater(lambda key, merged, stored: merged.copyto(stored))
        kv.pushpull("a", values)
        assert all((item.asnumpy() == 6).all() for item in values)
        kv.row_sparse_pull("a", out=outs, row_ids=mx.nd.array([1]))
        assert all(out.asnumpy()[:, 0].tolist() == [0, 6] for out in outs)
        arrays = [mx.nd.full(SHAPE, 3).copyto(context) for context in apart]
        kv._share("b", arrays)
        kv.push("b", arrays)
        assert (value(kv, "b") == 9).all()
    summed = [{place(array) for array in arrays} for arrays in log]
    assert all(len(places) == 1 for places in summed)
    assert len({context for places in summed for context in places if context is not None}) == busy


# -- other stores ------------------------------------------------------------------------------------------


def test_stores_can_be_registered():
    @mx.kvstore.KVStoreBase.register
    class MyStore(mx.kvstore.KVStoreBase):
        def __init__(self, size=1):
            self.size = size

    try:
        assert mx.kv.create("MyStore", size=3).size == 3
        assert mx.kv.KVStoreBase.kv_registry["mystore"] is MyStore
    finally:
        del mx.kv.KVStoreBase.kv_registry["mystore"]


def test_the_store_for_tests_sums_and_copies():
    kv = mx.kv.create("teststore")
    assert (kv.type, kv.rank, kv.num_workers, kv.is_capable("optimizer")) == ("teststore", 0, 1, False)
    values, out = ones(3), ones(2, 0)
    kv.pushpull(1, values, out=out)
    kv.pushpull(1, values)
    assert all((item.asnumpy() == 3).all() for item in values + out)
    kv.broadcast(1, ones(factor=7)[0], out=out)
    assert all((item.asnumpy() == 7).all() for item in out)


@pytest.mark.parametrize(
    "call",
    [
        lambda kv: kv.broadcast(1, None, None),
        lambda kv: kv.pushpull(1, None),
        lambda kv: kv.set_optimizer(None),
        lambda kv: kv.is_capable("optimizer"),
        lambda kv: kv.save_optimizer_states("x"),
        lambda kv: kv.load_optimizer_states("x"),
        lambda kv: kv.type,
        lambda kv: kv.rank,
        lambda kv: kv.num_workers,
    ],
)
def test_the_base_class_names_missing_methods(call):
    with pytest.raises(NotImplementedError, match=r"has no|not implemented"):
        call(mx.kv.KVStoreBase())


# -- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (5, TypeError, "name is 5, expected the name of a kvstore"),
        ("locall", ValueError, "did you mean 'local'"),
        ("dist_sync", SettingError, "`python -m flowmx launch` does so"),
        ("dist_device_async", SettingError, "belongs to no job"),
        ("horovod", NotImplementedError, "use 'device'"),
    ],
)
def test_unknown_stores_are_refused(name, error, message):
    with pytest.raises(error, match=message):
        mx.kv.create(name)


ARRAY = ones()[0]
REFUSED = {
    "init again": (lambda kv: kv.init("a", ARRAY), mx.MXNetError, "'a' is already initialized"),
    "init by number": (lambda kv: kv.init(1, ARRAY), ValueError, "1 follows 'a', expected either all int or all"),
    "init with two": (lambda kv: kv.init("c", [ARRAY, ARRAY]), ValueError, "got 2 values for key 'c', expected one"),
    "broadcast again": (lambda kv: kv.broadcast("a", ARRAY, out=ARRAY), ValueError, "each key once"),
    "mixed keys": (lambda kv: kv.push(["a", 1], [ARRAY, ARRAY]), ValueError, "mix int and str"),
    "float key": (lambda kv: kv.push(1.5, ARRAY), TypeError, "the key is 1.5, expected an int or a str"),
    "boolean key": (lambda kv: kv.init(True, ARRAY), TypeError, "the key is True"),
    "unknown key": (
        lambda kv: kv.push("z", ARRAY),
        ValueError,
        "unknown key 'z' (initialized keys: 'a', 'b'): call init",
    ),
    "unknown pull": (lambda kv: kv.pull("z", out=ARRAY), ValueError, "pull: unknown key 'z'"),
    "no array": (
        lambda kv: kv.push("a", [1]),
        TypeError,
        "the value for key 'a' is list, expected an NDArray or a list",
    ),
    "numpy": (lambda kv: kv.push("a", np.ones(SHAPE)), TypeError, "is ndarray, expected an NDArray"),
    "empty": (lambda kv: kv.push("a", []), ValueError, "is an empty list"),
    "too few": (lambda kv: kv.push(["a", "b"], [ARRAY]), ValueError, "got 2 keys with 1 values"),
    "one for many": (lambda kv: kv.push(["a", "b"], ARRAY), ValueError, "got 2 keys with NDArray"),
    "shape": (lambda kv: kv.push("a", ARRAY[0]), mx.MXNetError, "has shape (3,), expected (2, 3)"),
    "shape out": (lambda kv: kv.pull("a", out=ARRAY[0]), ValueError, "pull: an array for key 'a' has shape (3,)"),
    "dtypes": (
        lambda kv: kv.push("a", [ARRAY, ARRAY.astype("float16")]),
        TypeError,
        "have dtypes float32 and float16, expected one dtype",
    ),
    "no out": (lambda kv: kv.pull("a"), ValueError, "pull: out is missing"),
    "no ids": (lambda kv: kv.row_sparse_pull("a", out=ARRAY), ValueError, "row_ids is missing"),
    "ids": (
        lambda kv: kv.row_sparse_pull("a", out=[ARRAY] * 3, row_ids=[mx.nd.array([0])] * 2),
        ValueError,
        "got 2 arrays of row ids and 3 outputs",
    ),
    "rows of a number": (
        lambda kv: (kv.init("n", mx.nd.zeros(())), kv.row_sparse_pull("n", mx.nd.zeros(()), row_ids=mx.nd.array([0]))),
        ValueError,
        "is a scalar, expected rows",
    ),
    "updater": (lambda kv: kv.set_updater(3), TypeError, "updater is 3"),
    "optimizer": (lambda kv: kv.set_optimizer("sgd"), TypeError, "optimizer is 'sgd'"),
    "no optimizer": (lambda kv: kv.save_optimizer_states("x"), ValueError, "call set_optimizer() first"),
    "capability": (lambda kv: kv.is_capable("foo"), ValueError, "the capability is 'foo'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(kv, case):
    call, error, message = REFUSED[case]
    kv.init(["a", "b"], [ARRAY, ARRAY])
    with pytest.raises(error, match=re.escape(message)):
        call(kv)
    assert (value(kv, "a") == 1).all()


def test_a_push_of_several_keys_is_refused_as_a_whole(kv):
    kv.init(["a", "b"], [ARRAY, ARRAY])
    with pytest.raises(ValueError, match="has shape"):
        kv.push(["a", "b"], [ARRAY * 2, ARRAY[0]])
    assert (value(kv, "a") == 1).all()


def test_compression_is_for_devices():
    with pytest.raises(ValueError, match="has nothing to compress: use 'device'"):
        mx.kv.create("local").set_gradient_compression({"type": "2bit"})
    kv = mx.kv.create("device")
    with pytest.raises(ValueError, match="'3bit'"):
        kv.set_gradient_compression({"type": "3bit"})
    kv.set_gradient_compression({"type": "fp16"})
    kv.init("a", ARRAY.astype("float64"))
    with pytest.raises(TypeError, match="is float64, expected float32"):
        kv.push("a", ARRAY.astype("float64"))


def test_arrays_of_a_recorded_graph_are_not_pulled_into(kv):
    kv.init("a", ARRAY)
    weight = mx.nd.zeros(SHAPE)
    weight.attach_grad()
    with mx.autograd.record(), pytest.raises(mx.MXNetError, match="cannot be changed in place while recording"):
        kv.pushpull("a", ARRAY, out=weight)
    kv.pushpull("a", ARRAY, out=weight)
    assert (weight.asnumpy() == 1).all()


@pytest.mark.parametrize("name", ["local", "device"])
def test_a_call_of_several_keys_sums_all_before_it_writes(name):
    values = [[mx.nd.ones(2, ctx=mx.cpu(i)) for i in range(2)]] * 3  # the same arrays under each key
    kv = mx.kv.create(name)
    kv.init([1, 2, 3], [mx.nd.zeros(2)] * 3)
    kv.pushpull([1, 2, 3], values)
    assert [item.asnumpy().tolist() for item in values[0]] == [[2, 2]] * 2
