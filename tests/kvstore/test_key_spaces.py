"""Several Trainers and Modules of one process on one store: each trains as if it were alone."""

import re
import threading
from contextlib import suppress

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd, gluon, nd
from flowmx.errors import KVStoreError
from flowmx.kvstore.spaces import format_key, local_key, qualify, space_of
from flowmx.kvstore.worker.family import Family
from tests.jobs import job

STEPS = 3


def network(value, prefix=None):
    net = gluon.nn.Dense(2, in_units=3, prefix=prefix)
    net.initialize(mx.init.Constant(value))
    return net


def step(net, trainer, rank=0):
    with autograd.record():
        loss = net(nd.ones((1, 3)) * (rank + 1)).sum()  # a gradient that does not depend on the weights
    loss.backward()
    trainer.step(2)


def values(net):
    return {name: param.data().asnumpy() for name, param in net._collect_params_with_prefix().items()}


def gan(
    store, rank=0, steps=STEPS, orders=(0, 1), saved=None, before_first=None, before_second=None, **options
):  # fmt: skip
    """Train two networks of the same shapes alternately, one with SGD with momentum and the other with Adam."""
    nets = network(1.0, "generator_"), network(5.0, "critic_")
    settings = ("sgd", {"learning_rate": 0.1, "momentum": 0.9}), ("adam", {"learning_rate": 0.1})
    trainers = {}
    for which in orders:
        trainers[which] = gluon.Trainer(nets[which].collect_params(), *settings[which], kvstore=store, **options)
    for number in range(steps):
        if wait := (before_first, before_second, None)[min(number, 2)]:
            wait([trainers[which] for which in (0, 1)])
        for which in (0, 1):
            step(nets[which], trainers[which], rank)
    if saved is not None:
        trainers[1].save_states(saved)
        trainers[1].load_states(saved)
        step(nets[1], trainers[1], rank)
    return [values(net) for net in nets]


def same(result, expected):
    for one, other in zip(result, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_allclose(one[name], other[name], rtol=2e-6, err_msg=name)


@pytest.fixture(scope="module")
def wanted():
    return gan(None)


@pytest.mark.parametrize("on_kvstore", [True, False])
@pytest.mark.parametrize("kind", ["local", "device"])
def test_trainers_may_share_a_store_of_one_process(kind, on_kvstore, wanted):
    same(gan(mx.kv.create(kind), update_on_kvstore=on_kvstore), wanted)


@pytest.mark.parametrize("on_kvstore", [True, False])
@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_trainers_may_share_a_store_of_a_job(kind, on_kvstore, wanted):
    if kind == "dist_async" and not on_kvstore:
        pytest.skip("the workers of dist_async see no sums")
    with job(1, 2) as cluster:
        same(cluster.each(lambda kv: gan(kv, update_on_kvstore=on_kvstore), kind)[0], wanted)


def test_all_workers_train_the_same_two_networks():
    with mx.settings.override(kvstore_bigarray_bound=4), job(2, 2) as cluster:
        results = cluster.each(lambda kv: gan(kv, kv.rank))
    same(results[0], results[1])
    first, second = results[0]
    assert abs(first["weight"] - second["weight"]).min() > 1


@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_states_are_saved_and_loaded_for_one_trainer_alone(kind, tmp_path, wanted):
    with job(1, 2) as cluster:
        results = cluster.each(lambda kv: gan(kv, saved=tmp_path / "states"), kind)[0]
    same(results[:1], wanted[:1])
    longer = gan(None, steps=STEPS + 1)
    same(results[1:], longer[1:])


def test_another_order_on_another_worker_is_refused():
    with job(2, 1) as cluster:
        begun = [
            cluster.begin(lambda kv: gan(kv, kv.rank, orders=(kv.rank, 1 - kv.rank)), rank=rank) for rank in (0, 1)
        ]
        errors = [str(item.exception(60)) for item in begun]
        with suppress(mx.MXNetError):  # errors of operations that were not awaited
            nd.waitall()
    for error in errors:
        assert re.search("'critic_bias', 'critic_weight' .*in the order of creation is [12] on worker", error), error


def test_names_with_other_counters_do_not_change_the_order():
    def work(kv):
        net = network(1.0, f"dense{kv.rank}_")
        trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore=kv)
        step(net, trainer)
        return values(net)

    with job(2, 1) as cluster:
        first, second = cluster.each(work)
    same([first], [second])


def test_a_job_resumes_from_snapshots_with_both_optimizers(tmp_path, wanted):
    for steps in (1, STEPS - 1):
        with job(1, 2, snapshot=tmp_path) as cluster:
            results = cluster.each(lambda kv: gan(kv, steps=steps))[0]  # noqa: B023
    same(results, wanted)


def test_a_worker_that_joins_late_takes_part_in_both():
    came, left_job = threading.Event(), threading.Event()

    def stays(kv):
        return gan(kv, 0, before_second=lambda trainers: (kv._barrier(), left_job.set(), came.wait(30)))

    def leaves(kv):
        gan(kv, 1, steps=1)
        kv._barrier()

    def joins(kv):
        def enrol(trainers):
            for trainer in trainers:
                trainer._on_kvstore(default=None)
                trainer._share(list(enumerate(trainer._params)))
            mx.run(kv.ready())
            came.set()

        return gan(kv, 1, steps=STEPS - 1, before_first=enrol)

    with job(2, 2) as cluster:
        expected = cluster.each(lambda kv: gan(kv, kv.rank))
    with job(2, 2, policy="elastic") as cluster:
        first, second = cluster.begin(stays, rank=0), cluster.begin(leaves, rank=1)
        second.result(60)
        assert left_job.wait(60)
        same(cluster.begin(joins, rank=1).result(60), expected[1])
        same(first.result(60), expected[0])


def test_plain_keys_of_the_user_and_keys_of_trainers_coexist(wanted):
    def work(kv):
        kv.init(0, nd.zeros((7,)))
        result = gan(kv)
        kv.push(0, nd.ones((7,)))
        out = nd.zeros((7,))
        kv.pull(0, out)
        return result, out.asnumpy().tolist(), kv.step

    with job(1, 1) as cluster:
        result, own, pushes = cluster.each(work)[0]
    same(result, wanted)
    assert (own, pushes) == ([1.0] * 7, 1)


def test_a_trainer_by_the_name_of_a_store_leaves_its_plain_keys_alone():
    def work(kv):
        first, second = kv._claim(["a"], by_name=True), kv._claim(["a"], by_name=True)
        for value, store in enumerate((kv, first, second)):
            store.init("w", nd.full((2,), value))
        outs = [nd.zeros((2,)) for _ in range(3)]
        for store, out in zip((kv, first, second), outs, strict=True):
            store.pull("w", out)
        return [out.asnumpy()[0] for out in outs]

    with job(1, 2) as cluster:
        assert cluster.each(work)[0] == [0.0, 1.0, 2.0]


def test_a_second_store_keeps_the_compression_of_the_first():
    kv = mx.kv.create("device")
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    first, second = (kv._claim(["w"], by_name=False) for _ in range(2))
    for store in (first, second):
        store.init("w", nd.zeros((2,)))
        store.push("w", [nd.full((2,), 0.7), nd.full((2,), 0.7)])
        out = nd.zeros((2,))
        store.pull("w", out)
        assert out.asnumpy().tolist() == [1.0, 1.0]


# -- modules -----------------------------------------------------------------------------------------------


def symbol(outputs=1):
    out = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=outputs, no_bias=True, name="fc")
    return mx.sym.LinearRegressionOutput(out, mx.sym.Variable("label"), name="out")


def module(store, value, optimizer, kind="module"):
    if kind == "bucketing":
        model = mx.mod.BucketingModule(
            lambda key: (symbol(), ("data",), ("label",)), default_bucket_key=3, context=mx.cpu()
        )
    else:
        model = mx.mod.Module(symbol(), label_names=["label"])
    model.bind([("data", (1, 3))], [("label", (1, 1))])
    model.init_params(mx.init.Constant(value))
    model.init_optimizer(store, *optimizer)
    return model


def batch():
    return mx.io.DataBatch(
        [nd.ones((1, 3))], [nd.zeros((1, 1))], provide_data=[("data", (1, 3))], provide_label=[("label", (1, 1))],
        bucket_key=3,
    )  # fmt: skip


def modules(store, kinds=("module", "bucketing")):
    """Train two modules with parameters of the same names, and a Trainer."""
    optimizers = ("sgd", {"learning_rate": 0.1}), ("adam", {"learning_rate": 0.1})
    model = [module(store, 1.0 + 4 * at, optimizers[at], kind) for at, kind in enumerate(kinds)]
    net = network(3.0)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01}, kvstore=store)
    for _ in range(STEPS):
        for entry in model:
            entry.forward_backward(batch())
            entry.update()
        step(net, trainer)
    return [{"fc": item.get_params()[0]["fc_weight"].asnumpy()} for item in model] + [values(net)]


def test_modules_and_a_trainer_in_one_process_train_as_each_does_alone():
    alone = modules(None)
    same(modules(mx.kv.create("local")), alone)
    with job(1, 2) as cluster:
        same(cluster.each(modules)[0], alone)


# -- names of keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [0, 3, -1, "w", "/w", "//", "/1/w", "/1#3", "#", "a/b", "", "line\nbreak/"])
@pytest.mark.parametrize("space", ["", "1", "12"])
def test_a_key_is_identified_by_its_space(space, key):
    travels = qualify(space, key)
    assert (space_of(travels), local_key(travels)) == (space, key)
    assert repr(key) in format_key(travels)


def test_keys_of_different_spaces_are_different():
    keys = [0, "0", "/0", "#0", "/1/0", "/1#0", "1/0", "//0"]
    assert len({qualify(space, key) for space in ("", "1", "2") for key in keys}) == 3 * len(keys)


def test_trainers_with_equal_parameters_are_distinguished_by_number():
    family = Family()
    assert [family.claim(names) for names in (["a"], ["b"], ["a"])] == ["1", "2", "3"]
    assert sorted(family.facts().values()) == ["1", "2", "3"]


def test_a_store_refuses_a_key_twice_as_before():
    kv = mx.kv.create("local")
    kv.init("w", nd.ones((2,)))
    with pytest.raises(KVStoreError, match="already initialized"):
        kv.init("w", nd.ones((2,)))
