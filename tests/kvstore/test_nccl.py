"""The store ``nccl``: the calls of NCCL, their ranks and order; and the fallback without NCCL."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd, gluon
from flowmx.devices import get
from flowmx.devices.sim import SimStream, simulated
from flowmx.engine.runtime import engine
from flowmx.kvstore.allreduce import NcclCommunicator, PeerCommunicator, nccl
from tests.nccl_stand_in import Call, Library, check_groups

COUNT = 3


@pytest.fixture(autouse=True)
def forgotten_errors():
    yield
    engine.failures.clear()


def stream_of(device):
    instance = SimStream(device.system, device, "collectives", "copies of peers")
    instance.raw = SimpleNamespace(ptr=1000 + device.context.device_id)
    return instance


@pytest.fixture
def library(monkeypatch):
    """Replace NCCL by a stand-in, on simulated devices that stand for the CUDA devices 4, 5 and 6."""
    result = Library()
    monkeypatch.setattr(nccl, "library", lambda: result)
    monkeypatch.setattr(nccl, "_stream_of", stream_of)
    with simulated("gtx980", COUNT, device_type="gpu") as machine:
        for index, device in machine.devices.items():
            device.number = 4 + index
        yield result


def gpus(count=COUNT):
    return [mx.gpu(index) for index in range(count)]


def arrays(shape=(5,), dtype="float32", where=None):
    return [mx.nd.full(shape, 10.0**i, ctx=ctx, dtype=dtype) for i, ctx in enumerate(where or gpus())]


# -- the communicator --------------------------------------------------------------------------------------


def test_arguments_of_collectives(library):
    places = [get(ctx) for ctx in gpus()]
    communicator = NcclCommunicator(places, library, stream_of)
    totals = communicator.all_reduce(arrays(), places)
    total = communicator.reduce(arrays(dtype="float16"), places[1])
    copies = arrays()[:2]
    communicator.broadcast(arrays()[2], copies)
    assert [item.asnumpy().tolist() for item in (*totals, total)] == [[111.0] * 5] * 4
    assert [copy.asnumpy().tolist() for copy in copies] == [[100.0] * 5] * 2
    assert [item.context for item in (*totals, total, *copies)] == [*gpus(), mx.gpu(1), *gpus(2)]
    forms = [group[0].form for group in library.groups]
    assert forms == [("allReduce", 5, 7, (0,)), ("reduce", 5, 6, (0, 1)), ("broadcast", 5, 7, (2,))]
    for group in library.groups:
        assert [(call.device, call.stream) for call in group] == [(4, 1000), (5, 1001), (6, 1002)]


def test_a_rank_without_an_array_participates_with_zeros(library):
    places = [get(ctx) for ctx in gpus()]
    communicator = NcclCommunicator(places, library, stream_of)
    totals = communicator.all_reduce(arrays()[:2], places)
    assert [total.asnumpy().tolist() for total in totals] == [[11.0] * 5] * 3


def test_an_unsupported_dtype_is_copied_between_peers(library):
    places = [get(ctx) for ctx in gpus()]
    communicator = NcclCommunicator(places, library, stream_of)
    inputs = arrays(dtype="int8")[:2]
    for total in (*communicator.all_reduce(inputs, places), communicator.reduce(inputs, places[2])):
        assert total.asnumpy().tolist() == [11] * 5
    copy = arrays(dtype="int8", where=[mx.gpu(2)])
    communicator.broadcast(inputs[1], copy)
    assert copy[0].asnumpy().tolist() == [10] * 5
    assert not library.groups


def test_collectives_run_after_their_inputs_and_before_their_readers(library):
    # The race checker of the simulated devices would raise; their memory is reused at once.
    places = [get(ctx) for ctx in gpus()]
    communicator = NcclCommunicator(places, library, stream_of)
    total = arrays()
    for _ in range(20):
        total = [entry / 111 for entry in communicator.all_reduce([item * 1 for item in total], places)]
    assert all(np.isfinite(item.asnumpy()).all() for item in total)


# -- order -------------------------------------------------------------------------------------------------


def test_the_checker_of_groups_sees_ranks_that_differ():
    one, other = Call(0, "reduce", 0, 0, 5, 7, (0, 0), 1), Call(1, "reduce", 0, 0, 5, 7, (0, 0), 1)
    check_groups([[one, other]], [0, 1])
    wrong = {
        "a rank is missing": [one],
        "in another order": [other, one],
        "another method": [one, other._replace(method="allReduce")],
        "another size": [one, other._replace(size=6)],
        "another root": [one, other._replace(options=(0, 1))],
    }
    for group in wrong.values():
        with pytest.raises(AssertionError, match="group 0 has"):
            check_groups([group], [0, 1])


def test_every_rank_gets_all_collectives_in_the_same_order_from_threads_and_priorities(library):
    """Three communicators over the same devices, each with another leader, from two threads."""
    orders = [gpus(), gpus()[::-1], gpus()[1:]]
    communicators = [NcclCommunicator([get(ctx) for ctx in order], library, stream_of) for order in orders]
    results = []

    def push(seed):
        rng = np.random.default_rng(seed)
        for _ in range(20):
            which = int(rng.integers(3))
            size = int(rng.integers(1, 50))
            inputs = arrays((size,), where=orders[which])
            devices = [get(ctx) for ctx in orders[which]]
            results.append(communicators[which].all_reduce(inputs, devices, int(rng.integers(-3, 3))))

    threads = [threading.Thread(target=push, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for item in threads:
        item.join()
    for totals in results:
        assert len({total.asnumpy().tobytes() for total in totals}) == 1
    assert len(library.groups) == 40  # all ranks take part, or the library would have failed


def test_collectives_of_a_store_are_launched_in_the_order_pushed(library):
    kv = mx.kv.create("nccl")
    kv.init(list(range(6)), [mx.nd.zeros(index + 1, ctx=mx.gpu(0)) for index in range(6)])
    values = [arrays((index + 1,)) for index in range(6)]
    with mx.engine.using(kvstore_reduce_bucket_size=0):
        kv._exchange(list(range(6)), values, values)
    mx.nd.waitall()
    assert [group[0].size for group in library.groups] == [6, 5, 4, 3, 2, 1]  # as a backward pass makes them


# -- the store ---------------------------------------------------------------------------------------------


def trained(kvstore, contexts, steps=3, **arguments):
    mx.random.seed(1)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(8, activation="tanh", in_units=4), gluon.nn.Dense(2, in_units=8))
    net.initialize(mx.init.Xavier(), ctx=contexts)
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", kvstore=kvstore, **arguments)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        data = gluon.utils.split_and_load(rng.standard_normal((7, 4)).astype("float32"), contexts, even_split=False)
        with autograd.record():
            losses = [(net(sample) ** 2).sum() for sample in data]
        autograd.backward(losses)
        trainer.step(7)
    return [[sample.asnumpy() for sample in param.list_data()] for param in net.collect_params().values()]


@pytest.mark.parametrize("on_store", [True, False])
def test_a_trainer_uses_it_and_trains_as_on_the_cpu(library, on_store):
    result = trained("nccl", gpus(), update_on_kvstore=on_store)
    for ours, (first, *_) in zip(result, trained(None, [mx.cpu(0)]), strict=True):
        for our in ours:
            np.testing.assert_allclose(our, first, rtol=1e-4, atol=1e-6)
            np.testing.assert_array_equal(our, ours[0])
    assert {call.method for group in library.groups for call in group} == (
        {"reduce", "broadcast"} if on_store else {"allReduce"}
    )


def test_simulated_devices_and_the_cpu_are_summed_by_peers_though_there_is_nccl(library):
    for device in library_devices():
        del device.number
    kv = mx.kv.create("nccl")
    kv.init(0, mx.nd.zeros(5, ctx=mx.gpu(0)))
    outs = arrays()
    kv._exchange([0], [arrays()], [outs])
    assert outs[1].asnumpy().tolist() == [111.0] * 5
    assert not library.groups
    assert isinstance(kv._peers, PeerCommunicator)


def library_devices():
    return [get(ctx) for ctx in gpus()]


def test_without_nccl_a_warning_is_given_once_per_line():
    with pytest.warns(UserWarning, match="NCCL is not available, so the kvstore 'nccl' sums on the devices") as caught:
        stores = [mx.kv.create("nccl") for _ in range(3)]
    assert len(caught) == 1
    assert stores[0].type == "nccl"
