"""Ten first hours of a newcomer, outside the checkout, with a Python that has the wheel: ``make journeys``.

``python -m tests.journeys PYTHON [NAME ...]`` runs each of them in an empty folder, and prints which passed and which
failed. They do only what the documentation says: no journey reads the source.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.journeys.wrong import WRONG, Wrong

CONTEXT = 12
"""Last lines of a report in which the error must be told."""


LAST = re.compile(r"flowmx: |sample |while |  made at |[A-Za-z_][\w.]*(: |$)")
"""The beginning of a report's last line: an error, or one of its notes."""


class Stuck(Exception):
    """A journey that got stuck: the step, and its output."""


class Newcomer:
    """A newcomer with a separate folder and a Python."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.python, self.folder = str(python), folder
        environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONSAFEPATH")}
        self.environ = {**environment, "OMP_NUM_THREADS": "1", "FLOWMX_RUNTIME_FOLDER": str(folder / "runtime")}

    def write(self, name: str, text: str) -> Path:
        """Write a file."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def run(self, *command: str, fails: bool = False, module: bool = False) -> str:
        """Run a program or a module with the Python. Return its output."""
        full = [self.python, *(["-m"] if module else []), *command]
        done = subprocess.run(full, cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=300)
        shown = done.stdout + done.stderr
        if (done.returncode != 0) is not fails:
            raise Stuck(f"{' '.join(command)} ended with {done.returncode}:\n{shown[-3000:]}")
        return shown

    def program(self, text: str, fails: bool = False) -> str:
        """Run a program of these lines."""
        self.write("program.py", text)
        return self.run("program.py", fails=fails)

    @contextlib.contextmanager
    def served(self, *command: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
        """Run a module that serves, until the journey leaves it; gives the address that it says."""
        process = subprocess.Popen(
            [self.python, "-m", *command], cwd=self.folder, env=self.environ, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            shown = ""
            for line in process.stdout:
                shown += line
                if address := re.search(r"http://127\.0\.0\.1:\d+", line):
                    yield address[0], process
                    return
            raise Stuck(f"{' '.join(command)} said no address:\n{shown}")
        finally:
            process.terminate()
            process.wait(30)


def expect(shown: str, *parts: str) -> None:
    """Check that something was shown.

    Raises:
        Stuck: it was not.
    """
    for part in parts:
        if part not in shown:
            raise Stuck(f"{part!r} was expected in:\n{shown[-3000:]}")


def notebook(user: Newcomer) -> None:
    """Train in a notebook; the saved one shows the result, and progress as one line."""
    cells = [
        "import numpy as np\nimport flowmx as mx",
        (
            "x = np.random.RandomState(0).rand(256, 8).astype('float32')\ny = (x.sum(axis=1) > 4).astype('float32')\n"
            "train = mx.io.NDArrayIter(x, y, 32)"
        ),
        (
            "net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var('data'), num_hidden=2), name='softmax')\n"
            "mod = mx.mod.Module(net)"
        ),
        (
            "mod.fit(train, num_epoch=20, optimizer_params={'learning_rate': 0.5},\n"
            "        batch_end_callback=mx.callback.ProgressBar(8))"
        ),
        "print('accuracy', mod.score(train, 'acc')[0][1] > 0.8)",
        "train.reset()\nawait mod.fit(train, num_epoch=1)\nmx.viz.plot_network(net, shape={'data': (1, 8)})",
    ]
    document = {
        "cells": [{"cell_type": "code", "id": f"c{at}", "metadata": {}, "outputs": [], "execution_count": None,
                   "source": each} for at, each in enumerate(cells)],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}}, "nbformat": 4, "nbformat_minor": 5,
    }  # fmt: skip
    user.write("first.ipynb", json.dumps(document))
    user.program(
        "import nbformat, nbclient\nbook = nbformat.read('first.ipynb', 4)\nnbclient.NotebookClient(book).execute()\n"
        "nbformat.write(book, 'done.ipynb')\n"
    )
    done = json.loads((user.folder / "done.ipynb").read_text())
    outputs = [cell["outputs"] for cell in done["cells"]]
    expect(json.dumps(outputs[4]), "accuracy True")
    expect(json.dumps(outputs[5]), "<svg")
    if len(outputs[3]) > 20:
        raise Stuck(f"progress is {len(outputs[3])} outputs, expected one for each of 20 epochs, which is replaced")


def mxnet_script(user: Newcomer) -> None:
    """Run a script that was written for MXNet, unchanged."""
    user.write(
        "old.py",
        """\
import argparse, logging
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

logging.basicConfig(level=logging.INFO)
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()
ctx = mx.gpu() if mx.context.num_gpus() else mx.cpu()
net = nn.HybridSequential()
with net.name_scope():
    net.add(nn.Dense(16, activation="relu"), nn.Dense(3))
net.initialize(mx.init.Xavier(), ctx=ctx)
net.hybridize()
data = np.random.RandomState(0).rand(300, 4).astype("float32")
label = data.argmax(axis=1) % 3
loader = gluon.data.DataLoader(gluon.data.ArrayDataset(data, label.astype("float32")), batch_size=50, shuffle=True)
loss_fn, metric = gluon.loss.SoftmaxCrossEntropyLoss(), mx.metric.Accuracy()
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.05})
for epoch in range(args.epochs):
    metric.reset()
    for x, y in loader:
        x, y = x.as_in_context(ctx), y.as_in_context(ctx)
        with autograd.record():
            out = net(x)
            loss = loss_fn(out, y)
        loss.backward()
        trainer.step(x.shape[0])
        metric.update([y], [out])
    logging.info("epoch %d: %s %f", epoch, *metric.get())
net.export("old")
print("final above 0.7:", metric.get()[1] > 0.7, mx.__version__)
""",
    )
    expect(user.run("flowmx", "run", "old.py", "--epochs", "12", module=True), "final above 0.7: True", "epoch 11")
    assert (user.folder / "old-symbol.json").is_file()


SAVED = """\
import flowmx as mx
net = mx.gluon.nn.HybridSequential()
net.add(mx.gluon.nn.Dense(8, activation="relu"), mx.gluon.nn.Dense(3))
net.initialize()
net.hybridize()
net(mx.nd.ones((1, 4)))
net.export("model")
"""


def service(user: Newcomer) -> None:
    """Serve a saved model over HTTP, ask it, and ask it wrongly."""
    user.program(SAVED)
    with user.served("flowmx", "serve", "model", "--shape", "4", "--port", "0") as (url, _):
        deadline = time.monotonic() + 60

        def ask(body: str) -> tuple[int, str]:
            request = urllib.request.Request(f"{url}/predict", body.encode(), {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                return 0, ""

        status, text = ask("[[1, 2, 3, 4]]")
        if status != 200:
            raise Stuck(f"a prediction was answered by {status}: {text}")
        status, text = ask("[[1, 2, 3]]")
        expect(f"{status} {text}", "400", "3")


def two_workers(user: Newcomer) -> None:
    """Train with two workers and a server on this machine."""
    user.write(
        "train.py",
        """\
import numpy as np
import flowmx as mx

kv = mx.kv.create("dist_sync")
random = np.random.RandomState(kv.rank)
x = random.rand(128, 4).astype("float32")
net = mx.gluon.nn.Dense(1)
net.initialize(mx.init.Zero())
trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore=kv)
for _ in range(200):
    with mx.autograd.record():
        loss = mx.gluon.loss.L2Loss()(net(mx.nd.array(x)), mx.nd.array(x.sum(axis=1)))
    loss.backward()
    trainer.step(128 * kv.num_workers)
near = abs(net.weight.data() - 1) < 0.1
print("rank", kv.rank, "of", kv.num_workers, "weight near 1:", bool(near.min().asscalar()))
""",
    )
    shown = user.run("flowmx", "launch", "--workers", "2", "--servers", "1", "--", user.python, "train.py", module=True)
    expect(shown, "rank 0 of 2 weight near 1: True", "rank 1 of 2 weight near 1: True")


def custom_operator(user: Newcomer) -> None:
    """Write an operator in Python with its gradient, use it in a network, and see a fault in it explained."""
    text = """\
import flowmx as mx

class Swish(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        x = in_data[0]
        self.assign(out_data[0], req[0], x * mx.nd.sigmoid(x))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        x, s = in_data[0], mx.nd.sigmoid(in_data[0])
        self.assign(in_grad[0], req[0], out_grad[0] * (s + x * s * (1 - s)))

@mx.operator.register("my_swish")
class SwishProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Swish()

x = mx.nd.array([-1.0, 0.5, 2.0])
x.attach_grad()
with mx.autograd.record():
    y = mx.nd.Custom(x, op_type="my_swish").sum()
y.backward()
h = 1e-3
f = lambda v: (v * mx.nd.sigmoid(v)).asnumpy()
expected = (f(x + h) - f(x - h)) / (2 * h)
print("gradient right:", bool(abs(x.grad.asnumpy() - expected).max() < 1e-2))
"""
    expect(user.program(text), "gradient right: True")
    wrong = user.program(text.replace("x * mx.nd.sigmoid(x))", "x.reshape((2, 2)))"), fails=True)
    expect(wrong, "(2, 2)", "in forward", "Custom")


def data_frame(user: Newcomer) -> None:
    """Train from a data frame of pandas; a column with a hole is named."""
    text = """\
import numpy as np
import pandas as pd
import flowmx as mx

random = np.random.RandomState(0)
frame = pd.DataFrame({"a": random.rand(200), "b": random.rand(200)})
frame["label"] = (frame.a > frame.b).astype("float32")
train = mx.io.NDArrayIter(frame[["a", "b"]], frame["label"], 20, shuffle=True)
net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2), name="softmax")
mod = mx.mod.Module(net)
mod.fit(train, num_epoch=30, optimizer_params={"learning_rate": 1.0})
print("accuracy above 0.9:", mod.score(train, "acc")[0][1] > 0.9)
"""
    expect(user.program(text), "accuracy above 0.9: True")
    holed = text.replace("train = mx", "frame.loc[3, 'b'] = None\ntrain = mx")
    expect(user.program(holed, fails=True), "'b'", "missing")


def onnx_round_trip(user: Newcomer) -> None:
    """Write a network as ONNX, run it by onnxruntime, and read it back."""
    user.program(SAVED)
    expect(
        user.program(
            """\
import numpy as np
import onnxruntime
import flowmx as mx

mx.onnx.export_model("model-symbol.json", "model-0000.params", [(2, 4)], onnx_file_path="model.onnx")
x = np.random.rand(2, 4).astype("float32")
theirs = onnxruntime.InferenceSession("model.onnx").run(None, {"data": x})[0]
back = mx.contrib.onnx.import_to_gluon("model.onnx", mx.cpu())
ours = mx.gluon.SymbolBlock.imports("model-symbol.json", ["data"], "model-0000.params")(mx.nd.array(x))
again = back(mx.nd.array(x)).asnumpy()
print("the same:", np.allclose(theirs, ours.asnumpy(), atol=1e-5), np.allclose(again, theirs, atol=1e-5))
"""
        ),
        "the same: True True",
    )


def profile(user: Newcomer) -> None:
    """Profile a training: a table of operators, a trace, and a process that the doctor finds well."""
    shown = user.program(
        """\
import json
import flowmx as mx

net = mx.gluon.nn.Dense(16)
net.initialize()
trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
mx.profiler.set_config(profile_all=True, aggregate_stats=True, filename="trace.json")
mx.profiler.set_state("run")
for _ in range(5):
    with mx.autograd.record():
        loss = net(mx.nd.ones((32, 8))).mean()
    loss.backward()
    trainer.step(32)
mx.nd.waitall()
mx.profiler.set_state("stop")
mx.profiler.dump()
print(mx.profiler.dumps())
print("events:", len(json.load(open("trace.json"))["traceEvents"]) > 5)
"""
    )
    expect(shown, "FullyConnected", "events: True")


def command_line(user: Newcomer) -> None:
    """Find the way by the command line alone: help, information, a model trained on a file, a wrong word."""
    expect(user.run("flowmx", "--help", module=True), "train", "serve", "launch", "doctor")
    expect(user.run("flowmx", "info", module=True), "flowmx", "FLOWMX_")
    expect(user.run("flowmx", "trian", module=True, fails=True), "did you mean 'train'")
    expect(user.run("flowmx", "train", "nothing.py", module=True, fails=True), "there is no script 'nothing.py'")
    user.program(SAVED)
    user.run("flowmx", "convert", "model-0000.params", "model.safetensors", module=True)
    expect(user.program('import flowmx as mx\nprint(len(mx.nd.load("model.safetensors")))'), "4")


def judged(user: Newcomer, name: str, wrong: Wrong) -> str:
    """The faults in the report of a wrong program; empty where nothing is."""
    folder = user.folder / name
    folder.mkdir()
    own = Newcomer(Path(user.python), folder)
    own.write(f"{name}.py", wrong.program)
    shown = own.run(f"{name}.py", fails=True)
    at = next(number for number, line in enumerate(wrong.program.splitlines(), 1) if line.endswith("#!"))
    tail = "\n".join(shown.rstrip().splitlines()[-CONTEXT:])
    problems = [f"{part!r} is not said" for part in (wrong.value, wrong.expected) if part not in tail]
    if not re.search(rf'{name}\.py(", line |:){at}\b', shown):
        problems.append(f"line {at} is not named")
    if not LAST.match(shown.rstrip().splitlines()[-1]):
        problems.append("the last line is not the error")
    if "doctor" in shown:
        problems.append("the doctor is named, though nothing hangs")
    return f"{name}: {'; '.join(problems)}\n{tail}" if problems else ""


def wrong_programs(user: Newcomer) -> None:
    """Write wrong programs: each report names the value, the expectation and the line."""

    def tried(name: str) -> str:
        try:
            return judged(user, name, WRONG[name])
        except Stuck as stuck:
            return f"{name}: {stuck}"

    with ThreadPoolExecutor(2) as threads:
        failures = [each for each in threads.map(tried, WRONG) if each]
    print(f"  {len(WRONG) - len(failures)} of {len(WRONG)} wrong programs are told as they should")
    if failures:
        raise Stuck("\n\n".join(failures))


JOURNEYS: dict[str, Callable[[Newcomer], None]] = {
    each.__name__: each
    for each in (
        notebook, mxnet_script, service, two_workers, custom_operator, data_frame, onnx_round_trip, profile,
        command_line, wrong_programs,
    )
}  # fmt: skip


def main() -> int:
    """Go through the journeys; returns 1 where one got stuck."""
    python, *names = sys.argv[1:]
    stuck = 0
    for name in names or JOURNEYS:
        with tempfile.TemporaryDirectory(prefix="flowmx-journey-") as folder:
            begun = time.monotonic()
            try:
                JOURNEYS[name](Newcomer(Path(python).absolute(), Path(folder)))
                print(f"{name}: went through in {time.monotonic() - begun:.0f} s", flush=True)
            except (Stuck, subprocess.TimeoutExpired, AssertionError) as error:
                stuck += 1
                print(f"{name}: STUCK\n{error}", flush=True)
    return int(stuck > 0)


if __name__ == "__main__":
    sys.exit(main())
