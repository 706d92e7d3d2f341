"""Wrong programs: each error says what was passed, what was expected, and what to do."""

import asyncio
import contextlib
import re
import subprocess
import sys

import numpy as np
import pytest

import flowmx as mx
from flowmx import cli, gluon, nd
from flowmx.errors import ShapeError
from flowmx.gluon import nn

X = nd.ones((2, 3))


class WithParameter(nn.Block):
    def __init__(self):
        super().__init__()
        self.g = gluon.Parameter("g", shape=(3,))

    def forward(self, x):
        return x * self.g.data()


def initialized(block):
    block.initialize()
    return block


PROGRAMS = {
    "a layer without an argument": (
        "nn.Conv2D(16)", TypeError, "Conv2D.__init__() missing 1 required positional argument: 'kernel_size'",
    ),
    "a transposed layer": ("nn.Conv1DTranspose(16)", TypeError, "Conv1DTranspose.__init__() missing 1 required"),
    "labels of a different shape": (
        "gluon.loss.L2Loss()(X, nd.ones((2, 4)))", ShapeError,
        "L2Loss: pred has shape (2, 3) and label (2, 4), expected (2, 3), or as many elements",
    ),
    "a vector as second input": (
        "gluon.loss.CosineEmbeddingLoss()(X, nd.ones((2, 4)), nd.ones(2))", ShapeError,
        "CosineEmbeddingLoss: input1 has shape (2, 3) and input2 (2, 4), expected (2, 3)",
    ),
    "too many classes": (
        "gluon.loss.SoftmaxCrossEntropyLoss()(X, nd.ones((3,)))", ShapeError,
        "label (3,), expected class numbers of shape (2,), or with sparse_label=False probabilities of shape (2, 3)",
    ),
    "a weight of a different shape keeps its message": (
        "gluon.loss.L2Loss()(X, X, nd.ones((7,)))", ShapeError, "broadcast_mul: shapes (2, 3) and (7,)",
    ),
    "the number of classes of a matrix": (
        "mx.metric.ConfusionMatrix(2)", TypeError, "name is 2, expected a string; the number of classes is no",
    ),
    "an index of a container": (
        "nn.HybridSequential()[5]", IndexError, "the index is 5, expected less than the number of blocks, 0",
    ),
    "a number as dataset": (
        "gluon.data.DataLoader(5, batch_size=2)", TypeError, "the dataset is a int, expected an object with a",
    ),
    "ragged samples": (
        "list(gluon.data.DataLoader([[1, 2], [3]], batch_size=2))", ValueError,
        "different shapes, [(2,), (1,)]: make them equal",
    ),
    "a transform of two parts for samples of one": (
        "gluon.data.SimpleDataset([1, 2]).transform(lambda a, b: a)[0]", TypeError,
        "transform() calls its function with the parts of a sample: this one has 1",
    ),
    "a parameter as attribute": (
        "initialized(WithParameter())(X)", mx.base.MXNetError, "create it with self.params.get('g', shape=...)",
    ),
    "a function as layer": (
        "nn.Sequential().add(abs)", TypeError, "expected a Block: wrap it in gluon.nn.HybridLambda or gluon.nn.Lambda",
    ),
    "a class as layer": (
        "nn.HybridSequential().add(nn.Flatten)", TypeError,
        "a child is the class Flatten, expected an object of it: Flatten(...)",
    ),
    "a hook": (
        "nn.Dense(2).register_forward_hook(3)", TypeError, "the hook is a int, expected a function of the block",
    ),
    "text as image": (
        'mx.image.imdecode(b"hello")', Exception, "begin with b'hello', cannot be decoded as an image: expected",
    ),
    "a net as service": (
        "mx.serve.app(nn.Dense(2))", TypeError,
        "the service has a Dense, expected a Predictor, or a dict of Predictors by name: create one with mx.serve.Pred",
    ),
    "the weight of a model": (
        "mx.serve.Predictor(nn.Dense(2), (3,), weight=0)", ValueError, "weight is 0, expected a number above 0",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*params.get")
@pytest.mark.parametrize("program", list(PROGRAMS))
def test_a_wrong_program_gets_a_message(program):
    code, kind, message = PROGRAMS[program]
    with pytest.raises(kind, match=re.escape(message)):
        eval(code)


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_losses_name_their_inputs_in_every_mode(hybridize, wrapped):
    loss = gluon.loss.HuberLoss()
    if wrapped:
        inner, loss = loss, nn.HybridLambda(lambda F, x: inner(x, nd.ones((2, 4))))
    elif hybridize:
        loss.hybridize()
    with pytest.raises(ShapeError, match=r"^HuberLoss: pred has shape \(2, 3\) and label \(2, 4\)"):
        loss(X) if wrapped else loss(X, nd.ones((2, 4)))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = nn.Dense(3)
    net.initialize()
    net.hybridize()
    net(nd.ones((1, 4)))
    net.export("m")
    (tmp_path / "h.py").write_text("import no_such_package\n")
    (tmp_path / "e.params").touch()
    (tmp_path / "weights.pt").touch()
    (tmp_path / "models" / "one").mkdir(parents=True)
    (tmp_path / "models" / "one" / "model.toml").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["serve", "m", "--shape", "4", "--handler", "nothing"],
            "No module named 'nothing'; expected a .py file, or a m",
        ),
        (
            ["serve", "m", "--shape", "4", "--handler", "h.py"],
            "'no_such_package'; h.py imports it: install it, or put it",
        ),
        (["serve", "m", "--shape", "7", "--port", "0"], "input weight has shape (3, 4), expected (3, 7)"),
        (["serve", "m", "--shape", "4", "--token-file", "no.token"], "--token-file: [Errno 2] No such file"),
        (["serve", "m", "--shape", "4", "--tls-cert", "no.pem", "--tls-key", "no.key"], "--tls-cert no.pem: [Errno 2]"),
        (["serve", "m", "--shape", "4", "--epoch", "9"], "'m-0009.params'; the folder has m-0000.params"),
        (["serve", "m", "--shape", "4", "--dtype", "fp32"], "dtype is 'fp32', expected a name such as float32"),
        (["serve", "m-0000.params.txt", "--shape", "4"], "there is no model 'm-0000.params.txt'"),
        (["serve", "h.py"], "h.py is not a model file, expected a folder with a model"),
        (["serve", "models", "--shape", "4"], "pass one of models/one, or serve all with --repository models"),
        (["launch", "--hostfile", "no.hosts", "--", "python"], "--hostfile: [Errno 2] No such file"),
        (["convert", "weights.pt", "out.onnx"], "a file of PyTorch or a Python pickle"),
        (["convert", "nothing", "out.onnx"], "expected the files nothing-symbol.json and nothing-0000.params"),
        (["convert", "e.params", "out.npz"], "e.params, byte 0: expected a .params file, found an empty file"),
    ],
)
def test_a_wrong_command_gets_a_line(folder, arguments, message, capsys):
    assert cli.main(arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_port_in_use_is_named(folder, capsys):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as sock:
        number = sock.getsockname()[1]
        assert cli.main(["serve", "m", "--shape", "4", "--port", str(number)]) == 1
    assert f"127.0.0.1:{number} is in use: choose another port, or 0 for a free one" in capsys.readouterr().err


def test_an_unknown_option_suggests_the_nearest(capsys):
    with pytest.raises(SystemExit):
        cli.main(["serve", "m", "--shapes=4"])
    assert "unrecognized arguments: --shapes=4; did you mean '--shape'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "m", "--batch-size", "8"], "--batch-size is --max-batch here"),
        (["launch", "--nproc_per_node", "2", "t.py"], "--nproc_per_node is --workers here"),
        (["launch", "--hosts", "", "--", "python"], "argument --hosts: --hosts names no hosts"),
        (["serve", "m", "--repository", "."], "expected a model, or --repository FOLDER, not both"),
    ],
)
def test_invalid_arguments_get_advice(arguments, message, capsys):
    with pytest.raises(SystemExit):
        cli.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("FLOWMX_CPU_WORKERS", "FLOWMX_CPU_WORKER_NTHREADS"),
        ("FLOWMX_ENGINE", "FLOWMX_ENGINE_TYPE"),
        ("MXNET_CPU_WORKER_NTHREAD", "MXNET_CPU_WORKER_NTHREADS"),
    ],
)
def test_an_unknown_environment_variable_suggests_the_nearest(variable, meant, monkeypatch):
    monkeypatch.setenv(variable, "2")
    with pytest.warns(UserWarning, match=f"{variable} is .*ignored; did you mean '{meant}'"):
        mx.settings.reload()


def test_a_repository_without_models_says_so(tmp_path, caplog):
    asyncio.run(mx.serve.Repository(tmp_path).load_all())
    assert "has no models: expected a folder or .mar archive for each model" in caplog.text


def test_an_onnx_file_names_its_declared_shape(folder, caplog):
    mx.onnx.export_model("m-symbol.json", "m-0000.params", [(1, 4)], onnx_file_path="m.onnx")
    with contextlib.suppress(mx.MXNetError):
        mx.serve.Predictor("m.onnx", (7,))
    assert "m.onnx declares the shape (4,) of a sample of data, and shape is (7,)" in caplog.text


def test_a_model_that_cannot_run_ends_the_service_of_workers(folder):
    command = [sys.executable, "-m", "flowmx", "serve", "m", "--shape", "7", "--port", "0", "--workers", "2"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 1
    assert "expected (3, 7)" in ended.stderr
    assert "did not start: exit status 1" in ended.stderr


def test_images_are_accepted_without_options():
    net = initialized(nn.GlobalAvgPool2D())
    assert mx.serve.Predictor(net, (3, 4, 4), image=True).hooks.image is not None
    assert mx.serve.Predictor(net, (3, 4, 4), image=False).hooks.image is None
    np.testing.assert_array_equal(net(nd.ones((1, 3, 4, 4))).asnumpy(), np.ones((1, 3, 1, 1)))


@pytest.mark.parametrize("kind", [nn.Sequential, nn.HybridSequential])
def test_layers_passed_to_the_constructor_get_advice(kind):
    for layers in ([nn.Dense(3)], nn.Dense(3)):
        with pytest.raises(TypeError, match=r"expected a str or None; .*net\.add"):
            kind(layers)
