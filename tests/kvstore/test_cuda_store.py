"""Sums over GPUs with a stand-in for CuPy that runs work late, in any allowed order."""

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd, gluon
from flowmx.devices import get
from flowmx.kvstore.allreduce import NcclCommunicator, PeerCommunicator, nccl
from tests.cupy_stand_in.standing import standing
from tests.nccl_stand_in import Library

COUNT = 3
GPUS = [mx.gpu(index) for index in range(COUNT)]


@pytest.fixture(params=[None, 1, 2], ids=["at launch", "adversarial timing", "another timing"])
def gpus(request):
    """Provide three GPUs."""
    with standing(COUNT, seed=request.param) as devices:
        yield devices


@pytest.mark.parametrize("bound", [1, 1_000_000], ids=["in pieces", "whole"])
def test_sums_are_added_in_the_order_of_the_devices(gpus, bound):
    inputs = [
        np.random.default_rng(index).standard_normal(101).astype(np.float32) * 10**index for index in range(COUNT)
    ]
    with mx.settings.override(kvstore_bigarray_bound=bound):
        sources = [mx.nd.array(each, ctx=ctx) for each, ctx in zip(inputs, GPUS, strict=True)]
        places = [get(ctx) for ctx in GPUS]
        totals = PeerCommunicator().all_reduce(sources, places)
        copies = [mx.nd.empty((101,), ctx=ctx) for ctx in GPUS[1:]]
        PeerCommunicator().broadcast(totals[0], copies)
        for total in (*totals, *copies):
            np.testing.assert_array_equal(total.asnumpy(), (inputs[0] + inputs[1]) + inputs[2])


def trained(contexts, bucket, **arguments):
    mx.random.seed(1)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(5, activation="tanh", in_units=4), gluon.nn.Dense(2, in_units=5))
    net.initialize(mx.init.Xavier(), ctx=contexts)
    net.hybridize()
    with mx.settings.override(kvstore_reduce_bucket_size=bucket):
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, **arguments)
        rng = np.random.default_rng(0)
        for _ in range(3):
            data = rng.standard_normal((7, 4)).astype(np.float32)
            with autograd.record():
                losses = [(net(x) ** 2).sum() for x in gluon.utils.split_and_load(data, contexts, even_split=False)]
            autograd.backward(losses)
            trainer.step(7)
    return [[sample.asnumpy() for sample in param.list_data()] for param in net.collect_params().values()]


@pytest.mark.parametrize("on_store", [True, False])
def test_buckets_train_as_single_sums_and_as_one_device(gpus, on_store):
    single, joined = (trained(GPUS, bucket, update_on_kvstore=on_store) for bucket in (0, 2048))
    for ours, theirs, (one,) in zip(joined, single, trained([mx.cpu(0)], 0), strict=True):
        for our in (*ours, *theirs):
            np.testing.assert_array_equal(our, ours[0])
            np.testing.assert_allclose(our, one, rtol=1e-4, atol=1e-6)


def test_collectives_of_nccl_on_streams_of_gpus(monkeypatch):
    library = Library()
    monkeypatch.setattr(nccl, "library", lambda: library)
    with standing(COUNT):
        places = [get(ctx) for ctx in GPUS]
        assert nccl.are_gpus(places)
        communicator = NcclCommunicator(places, library)
        sources = [mx.nd.full((5,), 10.0**index, ctx=ctx) for index, ctx in enumerate(GPUS)]
        totals = communicator.all_reduce(sources[:2], places)
        totals.append(communicator.reduce(sources[:2], places[2]))
        communicator.broadcast(sources[2], sources[:1])
        assert [total.asnumpy().tolist() for total in totals] == [[11.0] * 5] * 4
        assert sources[0].asnumpy().tolist() == [100.0] * 5
        assert [[call.device for call in group] for group in library.groups] == [[0, 1, 2]] * 3
        assert len({call.stream for group in library.groups for call in group}) == COUNT
        for several, (one,) in zip(trained(GPUS, 2048, kvstore="nccl"), trained([mx.cpu(0)], 0), strict=True):
            for item in several:
                np.testing.assert_allclose(item, one, rtol=1e-4, atol=1e-6)
        assert len(library.groups) > 3
