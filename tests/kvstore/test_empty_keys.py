"""Keys without elements, and scalars, in every store."""

import numpy as np
import pytest

import flowmx as mx
from flowmx import nd
from tests.jobs import job

SHAPES = [(), (0,), (0, 3), (4, 0), (2,), (3, 2)]
KEYS = [f"k{number}" for number in range(len(SHAPES))]
PACKINGS = [None, {"type": "2bit", "threshold": 0.5}, {"type": "fp16"}, {"type": "bf16"}]


def in_store(kind, work, **options):
    """Run work with a store of one process, or with that of a job's worker."""
    if not kind.startswith("dist"):
        return work(mx.kv.create(kind))
    with job(1, 2, **options) as cluster:
        return cluster.each(work, kind)[0]


def pulled(kv, keys=KEYS, shapes=SHAPES):
    outs = [nd.full(shape, 9) for shape in shapes]
    kv.pull(keys, outs)
    return [out.asnumpy() for out in outs]


def check(result, value):
    for array, shape in zip(result, SHAPES, strict=True):
        np.testing.assert_allclose(array, np.full(shape, value), rtol=1e-6)


@pytest.mark.parametrize("bound", [1, 1000])
@pytest.mark.parametrize("kind", ["local", "device", "dist_sync", "dist_device_sync", "dist_async"])
def test_keys_of_every_size_are_pushed_and_pulled(kind, bound, tmp_path):
    def work(kv):
        kv.init(KEYS, [nd.zeros(shape) for shape in SHAPES])
        kv.set_optimizer(mx.optimizer.Test())
        kv.push(KEYS, [nd.ones(shape) for shape in SHAPES])
        check(pulled(kv), 1)
        for key, shape in zip(KEYS, SHAPES, strict=True):
            kv.push(key, [nd.ones(shape, ctx=mx.cpu(device)) for device in range(2)])
        check(pulled(kv), 3)
        outs = [nd.zeros(shape) for shape in SHAPES]
        kv.pushpull(KEYS, [nd.ones(shape) for shape in SHAPES], outs)
        check([out.asnumpy() for out in outs], 4)
        kv._exchange(KEYS, [[nd.ones(shape, ctx=mx.cpu(at)) for at in (0, 1)] for shape in SHAPES], [[o] for o in outs])
        check([out.asnumpy() for out in outs], 6)
        kv.save_optimizer_states(tmp_path / "states")
        kv.load_optimizer_states(tmp_path / "states")
        for number, shape in enumerate(SHAPES):
            out = nd.zeros(shape)
            kv.broadcast(f"b{number}", nd.ones(shape), out)
            assert (out.asnumpy() == 1).all() and out.shape == shape

    with mx.settings.override(kvstore_bigarray_bound=bound):
        in_store(kind, work)


@pytest.mark.parametrize("kind", ["local", "device", "dist_sync", "dist_async"])
def test_rows_of_keys_without_elements_can_be_pushed_and_pulled(kind):
    shapes = [shape for shape in SHAPES if len(shape) > 1]
    keys = [f"r{number}" for number in range(len(shapes))]

    def work(kv):
        kv.init(keys, [nd.ones(shape) for shape in shapes])
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
        for key, shape in zip(keys, shapes, strict=True):
            ids = nd.array(list(range(min(shape[0], 2))), dtype="int64")
            dense, sparse = nd.zeros(shape), nd.sparse.zeros("row_sparse", shape)
            for out in (dense, sparse):
                kv.row_sparse_pull(key, out, row_ids=ids)
            assert np.array_equal(dense.asnumpy(), sparse.asnumpy())
            assert (dense.asnumpy()[: len(ids)] == 1).all()
            kv.push(key, nd.full(shape, -1).tostype("row_sparse"))
            kv.pull(key, dense)
            assert (dense.asnumpy() == 2).all()

    in_store(kind, work)


@pytest.mark.parametrize("packing", PACKINGS[1:])
@pytest.mark.parametrize("kind", ["device", "dist_sync"])
def test_keys_without_elements_are_compressed(kind, packing):
    def work(kv):
        kv.init(KEYS, [nd.zeros(shape) for shape in SHAPES])
        kv.set_gradient_compression(packing)
        kv.push(KEYS, [[nd.full(shape, 0.5)] for shape in SHAPES])
        check(pulled(kv), 0.5)

    in_store(kind, work)


def test_keys_without_elements_are_restored_from_snapshots(tmp_path):
    def begin(kv):
        kv.init(KEYS, [nd.zeros(shape) for shape in SHAPES])
        kv.push(KEYS, [nd.ones(shape) for shape in SHAPES])
        check(pulled(kv), 1)

    def again(kv):
        kv.init(KEYS, [nd.full(shape, 7) for shape in SHAPES])
        check(pulled(kv), 1)

    in_store("dist_sync", begin, snapshot=tmp_path)
    in_store("dist_sync", again, snapshot=tmp_path)
