"""``python -m flowmx train``: scripts with settings, and built-in models on data."""

import json
import subprocess
import sys
import types
from importlib import machinery

import numpy as np
import pytest

import flowmx as mx
from flowmx import cli
from flowmx.tools.commands.training import data, fitting, models
from flowmx.tools.commands.training.data import DataOptions


def flowmx_(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "flowmx", *map(str, arguments)], capture_output=True, text=True,
        timeout=110, check=False, cwd=cwd,
    )  # fmt: skip


@pytest.fixture
def table(tmp_path):
    """Return rows of two linearly separable classes."""
    rows = np.random.default_rng(3).normal(size=(400, 4)).astype(np.float32)
    labels = (rows[:, :2].sum(axis=1) > 0).astype(np.float32)
    return rows, labels


def test_a_model_learns_a_table_and_is_served(tmp_path, table, capsys):
    rows, labels = table
    lines = [",".join(map(str, [*row, label])) for row, label in zip(rows, labels, strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,c,d,label", *lines]))
    options = ["--model", "mlp", "--data", str(tmp_path / "table.csv"), "--epochs", "4", "--batch-size", "16"]
    assert cli.main(["train", *options, "--seed", "1", "--out", str(tmp_path / "out")]) == 0
    captured = capsys.readouterr()
    (line,) = captured.out.splitlines()
    assert float(line.removeprefix("validation accuracy ").partition(";")[0]) > 0.9
    assert "epoch 4/4  20/20" in captured.err and "epoch 4: validation accuracy" in captured.err

    async def asked():  # no shape is needed: the model knows its own
        async with mx.serve.Predictor(tmp_path / "out", max_batch=32) as predictor:
            return await predictor(rows[:50])

    assert (mx.run(asked()).argmax(axis=1) == labels[:50]).mean() > 0.85


def test_training_resumes_from_a_checkpoint(tmp_path, table, capsys):
    rows, labels = table
    np.savez(tmp_path / "rows.npz", data=rows, label=labels)
    options = ["train", "--model", "mlp", "--data", str(tmp_path / "rows.npz"), "--out", str(tmp_path / "out")]
    options += ["--checkpoint", str(tmp_path / "run"), "--every", "5", "--epochs"]
    assert cli.main([*options, "1"]) == 0
    assert cli.main([*options, "2"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("epoch 1: validation") == 1 and captured.err.count("epoch 2: validation") == 1
    assert (tmp_path / "run" / "epoch-0001-batch-000005.checkpoint").exists()
    assert cli.main([*options, "2"]) == 0  # there is nothing left to do
    assert capsys.readouterr().out.startswith("validation accuracy 0.")


def test_digits(tmp_path, capsys):
    pytest.importorskip("sklearn")
    options = ["--model", "lenet", "--data", "digits", "--epochs", "1", "--seed", "1", "--out", str(tmp_path)]
    assert cli.main(["train", *options]) == 0
    assert float(capsys.readouterr().out.removeprefix("validation accuracy ").partition(";")[0]) > 0.75


def test_images_of_records(tmp_path):
    pytest.importorskip("PIL")
    record = mx.recordio.MXIndexedRecordIO(str(tmp_path / "a.idx"), str(tmp_path / "a.rec"), "w")
    for number in range(4):
        image = np.full((40, 40, 3), 60 * number, np.uint8)
        record.write_idx(number, mx.recordio.pack_img(mx.recordio.IRHeader(0, number % 2, number, 0), image))
    record.close()
    path = str(tmp_path / "a.rec")
    loaded = data.load(DataOptions(path, path, batch_size=2, shape=(3, 32, 32), classes=2))
    assert [batch.data[0].shape for batch in loaded.train] == [(2, 3, 32, 32)] * 2
    assert loaded.validation is not None and loaded.batches is None
    with pytest.raises(ValueError, match="pass --classes"):
        data.load(DataOptions(path))
    with pytest.raises(ValueError, match="expected 3 channels"):
        data.load(DataOptions(path, classes=2, shape=(32,)))


def test_data_with_a_part_to_validate_on(tmp_path, table):
    rows, labels = table
    np.savez(tmp_path / "keras.npz", x_train=rows[:300], y_train=labels[:300], x_test=rows[300:], y_test=labels[300:])
    loaded = data.load(DataOptions(str(tmp_path / "keras.npz"), batch_size=50))
    assert loaded.batches == 6 and loaded.shape == (4,) and loaded.classes == 2
    assert sum(batch.data[0].shape[0] - batch.pad for batch in loaded.validation) == 100
    loaded = data.load(DataOptions(str(tmp_path / "keras.npz"), str(tmp_path / "keras.npz"), shape=(2, 2)))
    assert loaded.validation.provide_data[0].shape == (64, 2, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,x\n", "expected comma-separated numbers"), ("1\n2\n", "has 1 column"), ("", "has no rows"),
        ("a,b\n\n", "has no rows"), ("1,2,0\n1,2,-1\n", "has the label -1, expected ints from 0 to 0"),
        ("1,2,0\n1,2,0.5\n", "has the label 0.5"), ("1,2,0\n1,2,nan\n", "has the label nan"),
    ],
)  # fmt: skip
def test_an_invalid_table(tmp_path, content, message):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        data.load(DataOptions(str(tmp_path / "t.csv")))


@pytest.mark.parametrize("columns", [1, 2, 5])
def test_a_table_may_have_any_number_of_columns(tmp_path, columns):
    (tmp_path / "t.csv").write_text(f"{'0.5,' * columns}0\n" * 8)
    loaded = data.load(DataOptions(str(tmp_path / "t.csv"), batch_size=2))
    assert loaded.train.provide_data[0].shape == (2, columns)


def test_labels_beyond_the_classes(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((9, 2)), y=np.arange(9))
    with pytest.raises(ValueError, match=r"has the label [3-8], expected ints from 0 to 2"):
        data.load(DataOptions(str(tmp_path / "x.npz"), classes=3))


def test_missing_data(tmp_path):
    np.savez(tmp_path / "odd.npz", weights=np.zeros(3))
    with pytest.raises(ValueError, match="has weights, expected data and label, or x and y"):
        data.load(DataOptions(str(tmp_path / "odd.npz")))
    with pytest.raises(ValueError, match=r"expected one of digits, \.npz, \.csv, \.rec"):
        data.load(DataOptions("cifar"))
    np.savez(tmp_path / "x.npz", x=np.zeros((4, 2)), y=np.zeros(3))
    with pytest.raises(ValueError, match="4 samples and 3 labels"):
        data.load(DataOptions(str(tmp_path / "x.npz")))
    with pytest.raises(ValueError, match=r"--held-out is 1\.0"):
        data.load(DataOptions(str(tmp_path / "x.npz"), held_out=1.0))


def test_models(tmp_path):
    for name in ("lenet", "mlp", "resnet18_v1"):
        model = models.make(name, (3, 64, 64), 7)
        assert model.infer_shape(data=(2, 3, 64, 64))[1] == [(2, 7)]
        model.save(tmp_path / "made-symbol.json")
        again = models.make(str(tmp_path / "made-symbol.json"), (3, 64, 64), 7)
        assert again.list_arguments() == model.list_arguments()
    lenet = models.make("lenet", (1, 28, 28), 10)  # that of MXNet's example
    shapes = dict(zip(lenet.list_arguments(), lenet.infer_shape(data=(1, 1, 28, 28))[0], strict=True))
    assert {name: shape for name, shape in shapes.items() if name.endswith("weight")} == {
        "conv1_weight": (20, 1, 5, 5), "conv2_weight": (50, 20, 5, 5), "fc1_weight": (500, 800),
        "fc2_weight": (10, 500),
    }  # fmt: skip
    scores = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3)
    scores.save(tmp_path / "scores.json")
    assert "softmax_label" in models.make(str(tmp_path / "scores.json"), (4,), 3).list_arguments()
    mx.sym.FullyConnected(mx.sym.var("words"), num_hidden=3).save(tmp_path / "other.json")
    with pytest.raises(ValueError, match="expected an input named data"):
        models.make(str(tmp_path / "other.json"), (4,), 3)
    with pytest.raises(ValueError, match="unknown model 'resnet19'"):
        models.make("resnet19", (3, 32, 32), 2)
    with pytest.raises(ValueError, match=r"expected one of .*lenet, mlp, .*did you mean 'lenet'\?"):
        models.make("lennet", (1, 8, 8), 10)
    assert {"lenet", "resnet18_v1"} <= set(models.names())


# -- scripts -------------------------------------------------------------------------------------------------


def test_a_script_runs_with_settings_around_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "sibling.py").write_text("NAME = 'sibling'")
    (tmp_path / "train.py").write_text(
        "import json, random, sys\n"
        "import numpy, sibling\n"
        "import flowmx as mx\n"
        "drawn = [mx.nd.random.uniform(shape=(2,)).asnumpy().tolist(), numpy.random.rand(), random.random()]\n"
        "import flowmx.settings as s\n"
        "print(json.dumps([sys.argv[1:], __name__, sibling.NAME, str(mx.nd.zeros(1).context),\n"
        "                  s.get().engine_type, drawn]))\n"
    )
    monkeypatch.chdir(tmp_path)
    options = ["--seed", "5", "--device", "cpu(1)", "--set", "engine_type=NaiveEngine", "--profile", "trace.json"]
    outputs = []
    for _ in range(2):
        assert cli.main(["train", *options, "train.py", "--epochs", "3"]) == 0
        captured = capsys.readouterr()
        outputs.append(captured.out)
    assert outputs[0] == outputs[1]
    document = json.loads(outputs[0])
    assert document[:5] == [["--epochs", "3"], "__main__", "sibling", "cpu(1)", "NaiveEngine"]
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert "trace: trace.json" in captured.err
    mx.profiler.dumps(reset=True)
    mx.profiler.set_config(filename="profile.json")
    assert mx.current_context() == mx.cpu() and mx.engine.stats() is not None


def test_a_script_that_fails_shows_its_own_traceback(tmp_path):
    (tmp_path / "bad.py").write_text("def f():\n    return 1 / 0\n\nf()\n")
    done = flowmx_("train", "bad.py", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith('Traceback (most recent call last):\n  File "bad.py", line 4, in <module>')
    assert "flowmx/" not in done.stderr


@pytest.mark.parametrize(("text", "status"), [("7", 7), ("0", 0), ("'no data'", 1), ("", 0)])
def test_the_exit_status_of_a_script_is_returned(text, status, tmp_path, capsys):
    (tmp_path / "leave.py").write_text(f"import sys\nsys.exit({text})\n")
    assert cli.main(["train", str(tmp_path / "leave.py")]) == status
    assert ("no data" in capsys.readouterr().err) == (status == 1)


NAN = "import flowmx as mx\nx = mx.nd.log(mx.nd.zeros(3) - 1)\nx.wait_to_read()\nprint('went on')\n"


def test_a_script_stops_at_nan(tmp_path, capfd):
    (tmp_path / "nan.py").write_text(NAN)
    assert cli.main(["train", "--stop-at-nan", str(tmp_path / "nan.py")]) == 1
    assert cli.main(["train", str(tmp_path / "nan.py")]) == 0
    captured = capfd.readouterr()
    assert captured.out == "went on\n" and "NonFiniteError" in captured.err and "log" in captured.err


def test_the_dashboard_is_an_option_where_it_is_installed(tmp_path, monkeypatch, capsys):
    (tmp_path / "script.py").write_text("print('trained')")
    events = []
    shown = types.SimpleNamespace(url="http://127.0.0.1:1", stop=lambda: events.append("stopped"))
    module = types.ModuleType("flowmx.observability.dashboard")
    module.__spec__ = machinery.ModuleSpec("flowmx.observability.dashboard", None)
    module.start = lambda port: events.append(port) or shown
    monkeypatch.setitem(sys.modules, "flowmx.observability.dashboard", module)
    assert cli.main(["train", "--dashboard", "8123", str(tmp_path / "script.py")]) == 0
    assert events == [8123, "stopped"]
    assert "dashboard: http://127.0.0.1:1\n" in capsys.readouterr().err


FIT = """
import sys
import numpy as np
import flowmx as mx

rows = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
for name in ("one", "two"):
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name=name), name="softmax")
    module = mx.mod.Module(net)
    epochs = []
    module.fit(mx.io.NDArrayIter(rows, np.zeros(32), 8), num_epoch=2, epoch_end_callback=lambda e, *a: epochs.append(e))
    print(name, epochs)
"""


def test_a_script_resumes_from_checkpoints_without_changes(tmp_path, capsys):
    (tmp_path / "fit.py").write_text(FIT)
    for expected in ("one [0, 1]\ntwo [0, 1]\n", "one []\ntwo []\n"):
        assert cli.main(["train", "--checkpoint", str(tmp_path / "run"), str(tmp_path / "fit.py")]) == 0
        assert capsys.readouterr().out == expected
    assert (tmp_path / "run" / "fit-2" / "epoch-0002-batch-000000.checkpoint").exists()


def test_data_without_a_saved_position_is_trained_on_without_checkpoints(tmp_path, caplog):
    class Batches(mx.io.NDArrayIter):
        state = set_state = property(lambda self: (_ for _ in ()).throw(AttributeError("none")))

    rows = mx.nd.ones((8, 3))
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2), name="softmax")
    with mx.checkpoint.scope(tmp_path / "run"):
        mx.mod.Module(net).fit(Batches(rows, mx.nd.zeros(8), 4), num_epoch=1)
    assert "no checkpoints are written: Batches cannot save its position" in caplog.text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "expected a SCRIPT, or --model and --data"),
        (["--model", "mlp", "--data", "digits", "x.py"], 2, "not both"),
        (["--model", "mlp"], 2, "needs --data"),
        (["--device", "tpu", "x.py"], 2, "expected devices such as cpu"),
        (["--model", "mlp", "--data", "digits", "--shape", "x"], 2, "expected sizes such as 3,32,32"),
        (["none.py"], 1, "there is no script 'none.py'"),
        (["--set", "SEED", "none.py"], 1, "expected NAME=VALUE"),
        (["--set", "SPEED=1", "none.py"], 1, "unknown setting SPEED"),
        (["--set", "ENGINE_MAX_OPS=x", "none.py"], 1, "FLOWMX_ENGINE_MAX_OPS is 'x'"),
        (["--model", "mlp", "--data", "digits", "--epochs", "0"], 1, "--epochs is 0"),
        (["--model", "mlp", "--data", "none.csv"], 1, "none.csv"),
    ],
)
def test_wrong_arguments(arguments, status, message, capsys):
    try:
        exit_code = cli.main(["train", *arguments])
    except SystemExit as ended:
        exit_code = ended.code
    assert exit_code == status
    assert message in capsys.readouterr().err


def test_a_gluon_loop_does_not_resume_from_checkpoints_of_fit(tmp_path, capsys):
    (tmp_path / "fit.py").write_text(FIT)
    assert cli.main(["train", "--checkpoint", str(tmp_path / "run"), str(tmp_path / "fit.py")]) == 0
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    with pytest.raises(mx.checkpoint.CheckpointError, match=r"were written by Module\.fit: use another folder"):
        mx.checkpoint.Run(tmp_path / "run", net).resume()


def test_padding_rows_of_the_last_batch_do_not_count():
    """Of 5 rows in batches of 4, the first three of the last batch would count twice if classified correctly."""
    module = mx.mod.Module(mx.sym.SoftmaxOutput(mx.sym.var("data"), name="softmax"))
    module.bind([("data", (4, 2))], [("softmax_label", (4,))], for_training=False)
    module.init_params()
    scores = np.eye(2, dtype=np.float32)[[0, 0, 0, 1, 1]]
    batches = mx.io.NDArrayIter(scores, np.array([0, 0, 0, 0, 0]), 4)
    assert mx.run(fitting.accuracy(module, batches)) == pytest.approx(3 / 5)


def test_a_folder_holds_one_model(tmp_path, capsys):
    out = tmp_path / "out"
    options = ["train", "--data", "digits", "--out", str(out), "--batch-size", "512", "--model"]
    assert cli.main([*options, "mlp", "--epochs", "2"]) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert cli.main([*options, "lenet", "--epochs", "3"]) == 1
    output = capsys.readouterr().err
    assert "is of another network" in output and "--out" in output
    assert cli.main([*options, "mlp", "--epochs", "1"]) == 1
    assert "model-0002.params" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert cli.main([*options, "mlp", "--epochs", "3"]) == 0
    assert (out / "model-0003.params").exists()
