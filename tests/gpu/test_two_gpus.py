"""Sums over GPUs of this machine, by NCCL and between peers; skipped where there are fewer than two."""

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd, gluon
from flowmx.devices import get
from flowmx.kvstore.allreduce import NcclCommunicator, PeerCommunicator, nccl

pytestmark = pytest.mark.skipif(mx.num_gpus() < 2, reason="needs two GPUs")


def gpus():
    return [mx.gpu(index) for index in range(mx.num_gpus())]


def communicators():
    places = [get(ctx) for ctx in gpus()]
    communicators = {"peers": PeerCommunicator()}
    if nccl.library() is not None:
        communicators["nccl"] = NcclCommunicator(places, nccl.library())
    return communicators


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int8"])
@pytest.mark.parametrize("size", [1, 1000, 3_000_001])
def test_communicators_give_the_sum_everywhere(dtype, size):
    rng = np.random.default_rng(size)
    values = [rng.integers(-20, 20, size).astype(dtype) for _ in gpus()]  # of which any order gives the same sum
    places = [get(ctx) for ctx in gpus()]
    for name, communicator in communicators().items():
        sources = [mx.nd.array(each, ctx=ctx, dtype=dtype) for each, ctx in zip(values, gpus(), strict=True)]
        totals = communicator.all_reduce(sources, places)
        totals.append(communicator.reduce(sources, places[-1]))
        for each in totals:
            np.testing.assert_array_equal(each.asnumpy(), np.sum(values, axis=0, dtype=dtype), err_msg=name)
        copies = [mx.nd.empty(size, ctx=ctx, dtype=dtype) for ctx in gpus()[1:]]
        communicator.broadcast(sources[0], copies)
        for each in copies:
            np.testing.assert_array_equal(each.asnumpy(), values[0], err_msg=name)


@pytest.mark.parametrize("kvstore", ["device", "nccl"])
@pytest.mark.parametrize("on_store", [True, False])
@pytest.mark.filterwarnings("ignore:create. NCCL is not available")
def test_data_parallel_training_is_that_of_one_gpu(kvstore, on_store):
    def trained(contexts):
        mx.random.seed(1)
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Dense(64, activation="tanh", in_units=16), gluon.nn.Dense(4, in_units=64))
        net.initialize(mx.init.Xavier(), ctx=contexts)
        net.hybridize()
        arguments = {"kvstore": kvstore, "update_on_kvstore": on_store} if len(contexts) > 1 else {}
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, **arguments)
        rng = np.random.default_rng(0)
        for _ in range(5):
            data = rng.standard_normal((33, 16)).astype(np.float32)
            with autograd.record():
                losses = [(net(x) ** 2).sum() for x in gluon.utils.split_and_load(data, contexts, even_split=False)]
            autograd.backward(losses)
            trainer.step(33)
        return [[each.asnumpy() for each in param.list_data()] for param in net.collect_params().values()]

    for several, (one,) in zip(trained(gpus()), trained(gpus()[:1]), strict=True):
        for each in several:
            np.testing.assert_array_equal(each, several[0])
            np.testing.assert_allclose(each, one, rtol=1e-3, atol=1e-5)
