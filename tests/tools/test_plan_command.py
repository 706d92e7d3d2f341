"""Plans of training on absent devices: memory, time, the bottleneck of a step; the command for scripts."""

import json
import subprocess
import sys
import tarfile
import textwrap
from pathlib import Path

import pytest

import flowmx as mx
from flowmx import autograd, gluon
from flowmx.devices.sim import PRESETS, Description
from flowmx.devices.sim.description import fleet, memory_of
from flowmx.engine.runtime import engine
from flowmx.tools.commands import plan as command

pytestmark = pytest.mark.filterwarnings("ignore:.*simulated without numerics")
BATCH, UNITS, FEATURES = 64, 256, 512
WEIGHTS = 4 * UNITS * FEATURES
"""The bytes of the single weight of :func:`train`."""


@pytest.fixture(autouse=True)
def forgotten_errors():
    yield
    engine.failures.clear()


def plain(**different):
    """A device with round figures."""
    figures = {
        "memory": 1 << 30, "flops": {"float32": 1e12}, "bandwidth": 1e12, "host_bandwidth": 1e12, "host_latency": 0.0,
        "peer_bandwidth": 1e12, "peer_latency": 0.0, "kernel_seconds": 0.0, "launch_seconds": 0.0, "efficiency": 1.0,
    }  # fmt: skip
    return Description(name="plain", **{**figures, **different})


def train(steps=4, contexts=None, optimizer="adam", waits=False, hybrid=False, batch=BATCH):
    """Train one layer."""
    contexts = contexts or [mx.gpu(index) for index in range(mx.num_gpus())]
    net = gluon.nn.Dense(UNITS, in_units=FEATURES, use_bias=False, prefix="layer_")
    net.initialize(ctx=contexts)
    if hybrid:
        net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), optimizer)
    for _ in range(steps):
        x = [mx.nd.ones((batch, FEATURES), ctx=context) for context in contexts]
        with autograd.record():
            losses = [net(array).sum() for array in x]
        autograd.backward(losses)
        trainer.step(batch)
        if waits:
            losses[0].asscalar()


# -- memory ------------------------------------------------------------------------------------------------


def test_memory_is_reported_by_use():
    (device,) = mx.plan.run(train, plain()).devices
    assert device.name == "gpu(0)"
    assert device.roles["weights"] == WEIGHTS
    assert device.roles["optimizer"] == 2 * WEIGHTS  # Adam's two means
    assert WEIGHTS <= device.roles["gradients"] <= 2 * WEIGHTS
    assert sum(device.roles.values()) == device.peak
    assert sum(nbytes for _, nbytes in device.holders) <= device.peak
    assert any("test_plan_command.py" in holder for holder, _ in device.holders)


def test_a_module_reports_its_memory():
    def fit():
        data = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=UNITS, no_bias=True, name="fc")
        module = mx.mod.Module(mx.sym.SoftmaxOutput(data, name="softmax"), context=mx.gpu(0))
        batches = mx.io.NDArrayIter(mx.nd.ones((4 * BATCH, FEATURES)), mx.nd.zeros(4 * BATCH), BATCH)
        module.fit(batches, num_epoch=1, optimizer="adam", eval_metric="acc")

    report = mx.plan.run(fit, plain())
    roles = report.devices[0].roles
    assert (roles["weights"], roles["gradients"], roles["optimizer"]) == (WEIGHTS, WEIGHTS, 2 * WEIGHTS)
    assert report.steps == 4 and report.fits


def test_missing_memory_is_reported():
    report = mx.plan.run(train, plain(), memory=4 * WEIGHTS)
    (device,) = report.devices
    assert not report.fits
    assert device.peak > device.memory
    assert "out of memory" in device.exceeded and "test_plan_command.py" in device.exceeded
    assert "gpu(0) needs" in report.text() and "FLOWMX_BACKWARD_DO_MIRROR" in report.text()
    assert report.growth < 1
    enough = mx.plan.run(train, plain(), memory=int(1.1 * device.peak))
    assert enough.fits and enough.devices[0].peak == device.peak


def test_the_reported_maximum_batch_fits_and_more_does_not():
    memory = 24 * WEIGHTS
    growth = mx.plan.run(train, plain(), memory=memory).growth
    assert growth > 2
    fits = [mx.plan.run(lambda n=n: train(batch=n), plain(), memory=memory).fits for n in (
        int(0.9 * growth * BATCH), int(1.1 * growth * BATCH)
    )]  # fmt: skip
    assert fits == [True, False]


def test_recomputation_lowers_the_reported_memory(monkeypatch):
    def deep():
        net = gluon.nn.HybridSequential()
        for _ in range(12):
            net.add(gluon.nn.Dense(64, in_units=64, flatten=False), gluon.nn.Activation("tanh"), gluon.nn.LayerNorm())
        net.initialize(ctx=mx.gpu(0))
        net.hybridize()
        for _ in range(2):
            with autograd.record():
                loss = net(mx.nd.ones((4096, 64), ctx=mx.gpu(0))).sum()
            loss.backward()

    retained = mx.plan.run(deep).devices[0].peak
    monkeypatch.setenv("FLOWMX_BACKWARD_DO_MIRROR", "1")
    mx.settings.reload()
    try:
        assert mx.plan.run(deep).devices[0].peak < 0.8 * retained
    finally:
        monkeypatch.undo()
        mx.settings.reload()


# -- time --------------------------------------------------------------------------------------------------


def test_the_program_ends_after_the_requested_steps():
    done = []

    def program():
        try:
            train(steps=1000)
        finally:
            done.append(True)

    report = mx.plan.run(program, plain(), steps=3)
    assert done and report.steps == 3 and report.counted_by == "updates of the weights"
    assert mx.plan.run(train, plain()).steps == 4


def test_a_loop_without_a_trainer_is_counted_by_its_backward_passes():
    def program():
        weights = [mx.nd.ones((64, 64), ctx=mx.gpu(index)) for index in range(2)]
        for weight in weights:
            weight.attach_grad()
        for _ in range(5):
            for weight in weights:
                with autograd.record():
                    loss = (weight * weight).sum()
                loss.backward()
                weight -= 0.1 * weight.grad

    report = mx.plan.run(program, plain(), count=2)
    assert report.counted_by == "backward passes" and report.steps == 5


def test_layers_are_counted_by_precision():
    def program():
        net = mx.gluon.nn.Dense(3, in_units=4)
        net.initialize(ctx=mx.gpu(0))
        net.hybridize()
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
        for _ in range(3):
            with autograd.record():
                loss = net(mx.nd.ones((4, 4), ctx=mx.gpu(0))).sum()
            loss.backward()
            trainer.step(4)

    report = mx.plan.run(program, plain())
    assert report.layers == {"float32": 1}
    assert "layers of compiled graphs by precision: 1 in float32" in report.text()


@pytest.mark.parametrize(
    ("device", "waits", "bound_by"),
    [
        (plain(flops={"float32": 1e9}), False, "arithmetic"),
        (plain(bandwidth=1e9), False, "bandwidth"),
        (plain(kernel_seconds=1e-3), False, "latency"),
        (plain(launch_seconds=1e-3), False, "launches"),
        (plain(peer_bandwidth=1e9), False, "copies of peers"),
        (plain(launch_seconds=1e-5, host_latency=1e-3), True, "copies out"),
        (plain(launch_seconds=1e-3, kernel_seconds=3e-3), True, "latency"),
    ],
)
def test_the_bottleneck_of_a_step(device, waits, bound_by):
    report = mx.plan.run(lambda: train(waits=waits), device, count=2)
    assert report.bound_by == bound_by, report.shares
    assert sum(report.shares.values()) == pytest.approx(1)


def test_batch_copies_are_reported():
    def program():
        batch = mx.nd.ones((BATCH, FEATURES))
        w = mx.nd.ones((FEATURES,), ctx=mx.gpu(0))
        w.attach_grad()
        for _ in range(4):
            with autograd.record():
                loss = (batch.as_in_context(mx.gpu(0)) * w).sum()
            loss.backward()

    report = mx.plan.run(program, plain(host_bandwidth=1e9))
    assert report.bound_by == "copies in" and report.shares["copies in"] > 0.9
    assert report.seconds == pytest.approx(4 * BATCH * FEATURES / 1e9, rel=0.1)


def test_the_time_of_a_step_follows_its_arithmetic():
    device = plain(flops={"float32": 1e9}, bandwidth=1e15)
    report = mx.plan.run(lambda: train(optimizer="sgd"), device)
    products = 2 * 2 * BATCH * FEATURES * UNITS / 1e9  # the layer's, and its gradient's for the weight
    assert products < report.seconds < 1.05 * products
    assert report.operators[0][0] in ("FullyConnected", "_backward_FullyConnected_weight")


@pytest.mark.parametrize(("network", "published"), [("resnet34_v1", 3.6e9), ("resnet50_v1", 3.8e9), ("vgg19", 19.6e9)])
def test_operation_counts_of_networks_match_publications(network, published):
    """He et al., Deep Residual Learning (arXiv:1512.03385), count multiply-adds of a forward pass."""

    def program():
        net = gluon.model_zoo.vision.get_model(network)
        net.initialize(ctx=mx.gpu(0))
        for _ in range(3):
            with autograd.record():
                loss = net(mx.nd.ones((1, 3, 224, 224), ctx=mx.gpu(0))).sum()
            loss.backward()

    report = mx.plan.run(program, plain(flops={"float32": 1.0}, bandwidth=1e15, host_latency=0.0, memory=1 << 36))
    assert report.seconds == pytest.approx(
        2 * 3 * published, rel=0.02
    )  # the backward pass computes twice as much as the forward pass


def test_each_device_gets_the_same_batch():
    one, four = (mx.plan.run(train, f"a10x{count}", steps=3) for count in (1, 4))
    assert [device.name for device in four.devices] == [f"gpu({index})" for index in range(4)]
    assert four.launches > 3 * one.launches
    assert all("kvstore" in device.roles for device in four.devices[:1])


def test_a_modules_graph_is_one_launch():
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4), name="softmax")

    async def program():
        module = mx.mod.Module(net, context=[mx.gpu(0), mx.gpu(1)])
        batches = mx.io.NDArrayIter(mx.nd.ones((16, 3)), mx.nd.zeros(16), 4)
        await module.fit(batches, num_epoch=1, optimizer_params={"learning_rate": 0.1}, kvstore="device")

    launched, captured = (mx.plan.run(program, "a10x2", graphs=graphs) for graphs in (False, True))
    assert captured.steps == launched.steps == 4
    assert captured.launches < launched.launches


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_plan_is_the_same_each_time(hybrid):
    assert mx.plan.run(lambda: train(hybrid=hybrid), "a10x2") == mx.plan.run(lambda: train(hybrid=hybrid), "a10x2")


def test_devices_are_as_before_afterwards():
    with pytest.raises(ZeroDivisionError):
        mx.plan.run(lambda: 1 / 0)
    assert mx.num_gpus() == 0
    with pytest.raises(mx.errors.DeviceError):
        mx.nd.ones(2, ctx=mx.gpu(0))


def test_a_plan_of_a_coroutine():
    async def program():
        train(steps=2)
        await mx.nd.waitall_async()

    assert mx.plan.run(program, steps=2).steps == 2


def test_more_gpus_than_there_are():
    with pytest.raises(mx.errors.DeviceError, match=r"gpu\(2\).*gpu\(0\), gpu\(1\)"):
        mx.plan.run(lambda: mx.nd.ones(2, ctx=mx.gpu(2)), "a10x2")


def test_the_program_sees_the_memory_of_a_simulated_gpu():
    calls = []

    def program():
        retained = mx.nd.ones((1 << 20,), ctx=mx.gpu(1))
        calls.append(mx.context.gpu_memory_info(1))
        calls.append(mx.context.num_gpus())
        del retained

    mx.plan.run(program, "a10x2")
    (free, total), count = calls
    assert total == PRESETS["a10"].memory and free == total * 95 // 100 + 1 - (4 << 20)
    assert count == 2


# -- words -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h100x8", ("H100", 8)),
        ("A10", ("A10", 1)),
        ("gtx980x2", ("GTX 980", 2)),
        ("gtx980", ("GTX 980", 1)),
        ("gk104x1", ("GK104", 1)),
    ],
)
def test_devices_by_name_and_number(text, expected):
    report, count = fleet(text)
    assert (report.name, count) == expected


@pytest.mark.parametrize("text", ["h200", "", "x8", "h100x0"])
def test_missing_devices(text):
    with pytest.raises(ValueError, match=r"expected"):
        fleet(text)


def test_memory_in_words():
    assert memory_of("40GB") == memory_of("40 GiB") == 40 << 30
    assert memory_of("512m") == 512 << 20 and memory_of("1.5g") == 3 << 29 and memory_of("4096") == 4096
    for text in ("", "much", "-1", "0", "4 GG"):
        with pytest.raises(ValueError, match="expected bytes such as 40GB"):
            memory_of(text)


# -- the command -------------------------------------------------------------------------------------------

SCRIPT = """
import sys
import flowmx as mx
from flowmx import autograd, gluon

net = gluon.nn.Dense(32, in_units=16)
net.initialize(ctx=mx.gpu(0))
trainer = gluon.Trainer(net.collect_params(), "sgd")
size = int(sys.argv[sys.argv.index("--batch") + 1])
for step in range(100):
    with autograd.record():
        loss = net(mx.nd.ones((size, 16), ctx=mx.gpu(0))).mean()
    loss.backward()
    trainer.step(1)
    print("step", step)
"""


@pytest.fixture
def script(tmp_path):
    """Return a function that writes a script and returns its path."""

    def write(text=SCRIPT):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return str(path)

    return write


def test_a_script_is_planned(script, capsys):
    status = command.main([script(), "--batch", "8", "--device", "a10x2", "--steps=2"])
    shown = capsys.readouterr().out
    assert status == 0
    assert "step 0" in shown and "step 2" not in shown
    assert "plan for 2 x A10" in shown and "optimizer" not in shown and "weights" in shown


def test_the_example_is_planned(capsys):
    example = Path(__file__).parent.parent.parent / "examples" / "plan_resnet.py"
    words = [str(example), "--network", "resnet18_v1", "--side", "64", "--device", "a10x2", "--steps", "2", "--graphs"]
    assert command.main(words) == 0
    shown = capsys.readouterr().out
    assert "gpu(1): " in shown and "copies of peers" in shown and "times this batch would fit" in shown


def test_the_exit_status_reports_the_result(script):
    arguments = ["--batch", "100000", "--memory", "4MB", "--json", "--steps", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "flowmx", "plan", script(), *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == command.DOES_NOT_FIT, done.stderr
    report = json.loads(done.stdout)
    assert not report["fits"] and report["steps"] == 2 and report["growth"] < 1
    assert report["devices"][0]["peak"] > 4 << 20
    assert "step 0" in done.stderr


def test_errors_of_a_script_are_passed_on(script, capsys):
    path = script("def faulty():\n    raise KeyError('planted')\n\nfaulty()\n")
    assert command.main([path]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback") and f'"{path}", line 4' in lines[1]
    assert lines[-1] == "KeyError: 'planted'"


@pytest.mark.parametrize(("text", "status"), [("exit(7)", 7), ("exit('no data')", 1)])
def test_the_exit_status_of_a_script_is_passed_on(text, status, script):
    assert command.main([script(f"import sys\nsys.{text}")]) == status


def test_a_script_without_a_gpu_has_no_plan(script):
    with pytest.raises(ValueError, match=r"did not use mx\.gpu"):
        command.main([script("import flowmx as mx\nmx.nd.ones(3).asnumpy()")])


@pytest.mark.parametrize("words", [[], ["--device", "h1"], ["missing.py"]])
def test_invalid_command_lines_are_reported(words, capsys):
    with pytest.raises((SystemExit, OSError)) as caught:
        command.main(words)
    assert "no script" in str(caught.value) or "plan: error" in capsys.readouterr().err


def test_options_may_stand_before_the_script_and_after_it():
    options, script = command.split(
        ["--json", "a.py", "1", "--lr", "2", "--device=a10", "--steps", "3", "--", "--steps", "4"]
    )
    assert options == ["--json", "--device=a10", "--steps", "3"]
    assert script == ["a.py", "1", "--lr", "2", "--steps", "4"]


# -- captured graphs ---------------------------------------------------------------------------------------


def deep(shapes, hybrid):
    """A network of many small layers, for batches of alternating sizes."""

    def program():
        net = gluon.nn.HybridSequential()
        for _ in range(10):
            net.add(gluon.nn.Dense(8, in_units=8), gluon.nn.Activation("tanh"))
        net.initialize(ctx=mx.gpu(0))
        if hybrid:
            net.hybridize(static_alloc=True)
        for size in shapes:
            with autograd.record():
                loss = net(mx.nd.ones((size, 8), ctx=mx.gpu(0))).sum()
            loss.backward()

    return program


def test_a_graph_that_runs_again_is_one_launch():
    plain_run, replayed = (mx.plan.run(deep([4] * 5, True), "h100", graphs=graphs) for graphs in (False, True))
    # The remaining operations store gradients in their buffers, one by one.
    assert plain_run.launches > 1.8 * replayed.launches
    assert replayed.seconds < plain_run.seconds
    assert replayed.devices[0].peak == plain_run.devices[0].peak
    unbound = [mx.plan.run(deep([4] * 5, False), "h100", graphs=graphs).launches for graphs in (False, True)]
    assert unbound[0] == unbound[1]


def test_a_graph_of_other_shapes_is_captured_again():
    same = mx.plan.run(deep([4, 4, 4, 4], True), "h100", graphs=True).launches
    each_anew = mx.plan.run(deep([4, 5, 6, 7], True), "h100", graphs=True).launches
    expected = mx.plan.run(deep([4, 5, 4, 5], True), "h100", graphs=True, steps=None).launches
    assert each_anew > 1.5 * same and same < expected < each_anew


def test_the_predictions_of_a_model_are_planned_without_its_label(tmp_path, capsys):
    layer = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=64, name="f")
    arrays = {"f_weight": mx.nd.ones((64, 128)), "f_bias": mx.nd.ones((64,))}
    mx.model.save_checkpoint(str(tmp_path / "m"), 0, mx.sym.SoftmaxOutput(layer, name="softmax"), arrays, {})
    archive = tmp_path / "model.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        for name in ("m-symbol.json", "m-0000.params"):
            file.add(tmp_path / name, name)
    peaks = []
    for batch in ("1", "4096"):
        assert command.main([str(archive), "--batch", batch, "--json", "--steps", "3"]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert plan["counted_by"] == "batches of predictions" and plan["steps"] == 3
        peaks.append(plan["devices"][0]["peak"])
    assert peaks[1] > 4096 * 128 * 4 > peaks[0]


def test_arguments_of_a_model_are_refused(tmp_path, capsys):
    mx.model.save_checkpoint(str(tmp_path / "m"), 0, mx.sym.exp(mx.sym.var("data")), {"unused": mx.nd.ones((1,))}, {})
    with pytest.raises(ValueError, match="is a model, which takes no arguments such as again"):
        command.main([str(tmp_path / "m"), "again"])
    with pytest.raises(ValueError, match="the batch size is 0"):
        command.main([str(tmp_path / "m"), "--batch", "0"])
