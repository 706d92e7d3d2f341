"""Listings from texts about MXNet run unchanged with flowmx as mxnet; flowmx reports the problems they describe.

Each file of ``tests/listings`` begins with a comment that says where it is from. The names that a listing does not
define (data, a network, a loss) are defined here.
"""

import gc
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from flowmx import amp, autograd, gluon, settings
from flowmx.devices.sim import simulated
from flowmx.gluon import nn

FOLDER = Path(__file__).parent.parent / "listings"


@pytest.fixture
def gpus():
    """Lets ``mx.gpu(0)`` be a simulated device where there is no GPU."""
    if mx.num_gpus():
        yield
        return
    with simulated("a10", device_type="gpu"):
        yield


@pytest.fixture(autouse=True)
def seeded():
    mx.random.seed(0)
    np.random.seed(0)


@pytest.fixture(autouse=True, scope="module")
def collected():
    """A trainer in mixed precision watches until it is freed, which others must not wait for."""
    yield
    gc.collect()


def run(name, **options):
    """Run a listing, with names that it leaves open; returns all its names."""
    names = {"mx": mx, **options}
    code = compile((FOLDER / name).read_text(encoding="utf-8"), name, "exec")
    before = sys.modules.get("mxnet")
    sys.modules["mxnet"] = mx
    try:
        exec(code, names)
    finally:
        if before is None:
            del sys.modules["mxnet"]
        else:
            sys.modules["mxnet"] = before
    return names


def network():
    net = nn.HybridSequential()
    net.add(nn.Dense(8, activation="relu"), nn.Dense(3))
    net.initialize(mx.init.Xavier())
    return net


def example(net):
    x = mx.nd.random.normal(shape=(4, 5))
    return {"net": net, "input": x, "label": mx.nd.array([0, 1, 2, 0]), "loss_fn": gluon.loss.SoftmaxCELoss()}


def test_every_listing_is_run_and_says_where_it_is_from():
    used = set(re.findall(r'"(\w+\.txt)"', Path(__file__).read_text(encoding="utf-8")))
    files = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir() if path.is_file()}
    assert set(files) == used
    assert all(text.startswith("# ") for text in files.values())


# -- lazy evaluation ---------------------------------------------------------------------------------------------


def test_a_gradient_is_computed():
    net = network()
    names = run("lazy_evaluation.txt", autograd=autograd, **example(net))
    assert np.isfinite(names["loss"].asnumpy()).all()
    assert all(np.abs(param.grad().asnumpy()).max() > 0 for param in net.collect_params().values())


def test_an_error_names_the_line_that_is_its_origin():
    # "Stack traces often appear far from their origin in the codebase"
    def faulty(self, x):
        raise ZeroDivisionError("planted")

    class Faulty(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            raise ZeroDivisionError("planted")

    @mx.operator.register("listing_faulty")
    class FaultyProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):
            return Faulty()

    def loss_fn(output, label):
        return mx.nd.Custom(output, op_type="listing_faulty")

    names = {**example(network()), "loss_fn": loss_fn}
    with pytest.raises(ZeroDivisionError, match="planted") as caught:
        run("lazy_evaluation.txt", autograd=autograd, **names)["loss"].asnumpy()
    assert "test_listings.py" in "".join(caught.value.__notes__) and "in loss_fn" in "".join(caught.value.__notes__)


# -- hybrid blocks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listing", ["hybridize.txt", "static_shapes.txt"])
def test_a_hybridized_network_computes_the_same(listing):
    net = network()
    x = mx.nd.random.normal(shape=(4, 5))
    before = net(x).asnumpy()
    run(listing, net=net)
    np.testing.assert_allclose(net(x).asnumpy(), before, rtol=1e-5)
    # "Dynamic shapes limit optimization", and are no mistake.
    assert net(mx.nd.ones((7, 5))).shape == (7, 3)


def test_parameters_are_moved_to_a_device(gpus):
    net = network()
    net(mx.nd.ones((1, 5)))
    ctx = run("pinned_context.txt", net=net)["ctx"]
    assert ctx == mx.gpu(0)
    assert all(param.list_ctx() == [ctx] for param in net.collect_params().values())
    assert net(mx.nd.ones((2, 5), ctx=ctx)).context == ctx


def test_devices_are_not_mixed_silently(gpus):
    # "Mixing devices without care causes silent performance degradation"
    net = network()
    net(mx.nd.ones((1, 5)))
    run("pinned_context.txt", net=net)
    with pytest.raises(RuntimeError, match=r"cpu\(0\)"):
        net(mx.nd.ones((2, 5), ctx=mx.cpu(0)))


# -- mixed precision ---------------------------------------------------------------------------------------------


@pytest.fixture
def mixed_precision():
    yield
    amp.deinit()


def mixed(net):
    names = example(net)
    net(names["input"])
    namespace = {"amp": amp, "autograd": autograd, "Trainer": gluon.Trainer, "params": net.collect_params()}
    return {**namespace, **names, "optimizer": "sgd", "output": names["input"]}


def test_a_scaled_loss(mixed_precision):
    net = network()
    names = mixed(net)
    # The listing takes the network's output as given; what reaches the parameters must be recorded with the loss.
    loss = names["loss_fn"]
    names = run("mixed_precision.txt", **{**names, "loss_fn": lambda x, label: loss(net(x), label) / 16})
    trainer, scaled = names["trainer"], names["scaled_loss"]
    weight = net[0].weight.data().asnumpy()
    trainer.step(4)
    moved = np.abs(net[0].weight.data().asnumpy() - weight).max()
    assert scaled.asnumpy().max() > 1000 and 0 < moved < 1


def test_a_loss_that_was_not_scaled_is_reported(mixed_precision):
    # "Failing to cast weights or loss functions correctly can silently lead to model divergence"
    net = network()
    names = mixed(net)
    amp.init()
    trainer = gluon.Trainer(net.collect_params(), "sgd", update_on_kvstore=False)
    amp.init_trainer(trainer)
    with autograd.record():
        loss = names["loss_fn"](net(names["input"]), names["label"])
    loss.backward()
    with pytest.raises(amp.UnscaledLossError, match=r"loss 'mean' of layer 'softmax.* was not scaled"):
        trainer.step(4)


# -- profiling ---------------------------------------------------------------------------------------------------


def test_a_profile_shows_what_ran(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("profiler.txt")
    network()(mx.nd.ones((4, 5))).wait_to_read()
    mx.profiler.set_state("stop")
    mx.profiler.dump()
    assert '"FullyConnected"' in (tmp_path / "profile.json").read_text(encoding="utf-8")
    assert "FullyConnected" in mx.profiler.dumps(reset=True)


# -- several devices and machines --------------------------------------------------------------------------------


def test_sums_over_devices(monkeypatch):
    monkeypatch.setenv("MXNET_KVSTORE_REDUCE_BUCKET_SIZE", "")
    with pytest.warns(UserWarning, match="sums on the devices"):
        kv = run("allreduce.txt", os=os)["kv"]
    values = [mx.nd.ones((3,), ctx=mx.cpu(i)) for i in range(2)]
    kv.init("g", mx.nd.zeros((3,)))
    kv.pushpull("g", values, out=values)
    assert [each.asnumpy().tolist() for each in values] == [[2, 2, 2]] * 2
    assert "MXNET_KVSTORE_REDUCE_BUCKET_SIZE" not in settings.mxnet_variables(os.environ)  # it is read


def test_variables_of_the_environment_mean_the_same():
    lines = (FOLDER / "environment.txt").read_text(encoding="utf-8").splitlines()[1:]
    variables = dict(line.split("=") for line in lines)
    loaded = settings.load(variables)
    defaults = settings.Settings()
    other = {name for name in settings.TABLE if getattr(loaded, name) != getattr(defaults, name)}
    # All but these two are given with the values that they have anyway.
    assert other == {"gpu_mem_pool_type", "gpu_mem_pool_round_linear_cutoff"}
    assert not settings.mxnet_variables(variables)  # each is read


@pytest.mark.skipif(mx.num_gpus() > 0, reason="this machine has a GPU")
def test_the_memory_of_a_missing_gpu():
    with pytest.raises(mx.MXNetError, match=r"gpu\(0\) does not exist"):
        run("memory_info.txt")


def test_the_memory_of_a_device(gpus, capsys):
    array = mx.nd.ones((1 << 20,), ctx=mx.gpu(0))
    array.wait_to_read()
    run("memory_info.txt")
    free, total = map(int, re.findall(r"\d+", capsys.readouterr().out))
    assert 0 < free <= total - (4 << 20)


# -- arrays, modules ---------------------------------------------------------------------------------------------


def test_arrays(gpus, capsys, tmp_path):
    prompt = re.findall(r"^(?:>>>|\.\.\.) (.*)", (FOLDER / "ndarray.txt").read_text(encoding="utf-8"), re.M)
    source = "\n".join(prompt)
    # Python 2's print statement is the one thing that Python 3 takes otherwise.
    source = re.sub(r"^print (.*)$", r"print(\1)", source, flags=re.M)
    listing = tmp_path / "ndarray.py"
    listing.write_text(source, encoding="utf-8")
    names = run(listing)
    assert capsys.readouterr().out.split() == ["[[2.", "2.", "2.]", "[2.", "2.", "2.]]"]
    assert names["a"].context == mx.gpu()


def digits(batch_size):
    """Images of ten kinds, each a pattern with noise."""
    rng = np.random.default_rng(0)
    patterns = rng.standard_normal((10, 784))
    labels = np.arange(200) % 10
    images = (patterns[labels] + 0.5 * rng.standard_normal((200, 784))).astype(np.float32)
    return (
        mx.io.NDArrayIter(images[:100], labels[:100], batch_size, shuffle=True),
        mx.io.NDArrayIter(images[100:], labels[100:], batch_size),
    )


def test_a_module_learns(gpus):
    train, val = digits(20)
    model = run("module.txt", batch_size=20, train_iter=train, val_iter=val)["model"]
    assert dict(model.score(val, "acc"))["accuracy"] > 0.95
    assert model.predict(val).shape == (100, 10)
    assert model.get_outputs()[0].context == mx.gpu(0)


async def test_in_a_coroutine_it_is_awaited():
    train, val = digits(20)
    data = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=10)
    model = mx.mod.Module(mx.sym.SoftmaxOutput(data, name="softmax"))
    await model.fit(train, num_epoch=3)
    assert dict(await model.score(val, "acc"))["accuracy"] > 0.95
    assert mx.run(5) == 5  # ordinary code's result, which is already there


def test_a_step_written_with_arrays_and_one_with_a_store():
    # Figures of the paper in pseudo code: `net.w -= eta * net.g`, and `kv.pull(net.w); ...; kv.push(net.g)`.
    x = mx.nd.array([[1.0, 2.0]])
    w, kv = mx.nd.zeros((1, 2)), mx.kv.create("local")
    w.attach_grad()
    kv.init("w", w)
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.1))
    for _ in range(50):
        kv.pull("w", out=w)
        with autograd.record():
            loss = ((w * x).sum() - 3) ** 2
        loss.backward()
        kv.push("w", w.grad)
    assert loss.asscalar() < 1e-3
