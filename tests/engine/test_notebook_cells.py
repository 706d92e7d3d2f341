"""Notebooks and prompts that run statements on an event loop: ordinary code, unless a statement uses ``await``."""

import asyncio
import code
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

import flowmx as mx
from flowmx.engine import loops
from flowmx.errors import EngineError
from tests import tutorial

SETUP = """
import asyncio, warnings
import numpy as np
import flowmx as mx
warnings.simplefilter("error")
rows = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
labels = (rows[:, 0] > 0).astype("float32")
data = mx.io.NDArrayIter(rows, labels, 8)
mod = mx.mod.Module(mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2), name="softmax"))
"""


RUN = """
import json, sys
import nbclient, nbformat
cells = [nbformat.v4.new_code_cell(cell) for cell in json.load(sys.stdin)]
notebook = nbformat.v4.new_notebook(cells=cells)
nbclient.NotebookClient(notebook, timeout=120, allow_errors=True).execute()
json.dump([cell.outputs for cell in notebook.cells[1:]], sys.stdout)
"""


def outputs(folder, *cells):
    """The outputs of the cells of a notebook, all run in one kernel, as the saved notebook has them."""
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    ended = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps([dedent(cell).strip() for cell in (SETUP, *cells)]),
        capture_output=True, text=True, timeout=240, cwd=folder,
        env={
            **os.environ, **dict.fromkeys(("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"), str(folder)),
            "JUPYTER_PREFER_ENV_PATH": "1", "NO_COLOR": "1",
        },
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def text(shown):
    """The text of a cell's outputs; an error is its message."""
    kinds = {"stream": lambda it: it["text"], "error": lambda it: it["evalue"]}
    return "".join(kinds.get(it["output_type"], lambda it: it["data"]["text/plain"])(it) for it in shown).strip()


STATEMENTS = [
    "mod.fit(data, num_epoch=4, optimizer_params={'learning_rate': 0.5})",
    "mod.score(data, 'acc')",
    "def train():\n    data.reset()\n    mod.fit(data, num_epoch=1)\n    return 'trained'\ntrain()",
    """
    neighbor = asyncio.create_task(asyncio.sleep(0))
    data.reset()
    await mod.fit(data, num_epoch=2)
    predicted = await mod.predict(data)
    print(neighbor.done(), predicted.shape, mod.predict(data).shape)
    """,
    """
    print(len(list(mod.iter_predict(data))), len([each async for each in mod.iter_predict(data)]))
    store = mx.kv.create()
    store.barrier()
    await store.barrier()
    """,
    """
    async def main():
        data.reset()
        await mod.fit(data, num_epoch=1)
        return "ended"
    mx.run(main())
    """,
    "async def other():\n    return mx.run(main())\nawait other()",
    """
    net = mx.gluon.nn.Dense(2)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    estimator = mx.gluon.contrib.estimator.Estimator(net, loss, trainer=trainer, context=mx.cpu())
    estimator.logger.disabled = True
    loader = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(rows, labels), 8)
    estimator.fit(loader, loader, epochs=1)
    await estimator.fit(loader, epochs=1)
    estimator.evaluate(loader)
    estimator.val_metrics[0].num_inst
    """,
    """
    def fail(param):
        raise KeyError("a callback's")
    data.reset()
    mod.fit(data, num_epoch=1, batch_end_callback=fail)
    """,
    """
    import os, signal, threading
    def interrupt(param):
        if param.epoch == param.nbatch == 0:
            os.kill(os.getpid(), signal.SIGINT)
    data.reset()
    try:
        mod.fit(data, num_epoch=10**9, batch_end_callback=interrupt)
    except KeyboardInterrupt:
        print("interrupted")
    """,
]
PROGRESS = """
from flowmx.progress import Bar
data.reset()
bar = mx.callback.ProgressBar(8, length=10)
mod.fit(data, num_epoch=2, batch_end_callback=bar)
with Bar(3, "packing") as progress:
    for _ in range(3):
        progress.step()
"""
WRONG = "def mine():\n    return mx.nd.dot(mx.nd.ones((2, 3)), mx.nd.ones((2, 3)))\nmine()"
LOOKED_AT = "%%engine\nprint(mx.nd.dot(mx.nd.ones((300, 300)), mx.nd.ones((300, 300))).shape)"
FOLDED = [WRONG, "%load_ext flowmx", WRONG, "int('a')", LOOKED_AT]


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """The outputs of the three lists of cells, one after the other in one kernel."""
    shown = outputs(tmp_path_factory.mktemp("notebook"), *STATEMENTS, PROGRESS, *FOLDED)
    return shown[: len(STATEMENTS)], shown[len(STATEMENTS)], shown[len(STATEMENTS) + 1 :]


def test_a_notebook(notebook):
    shown, _, _ = notebook
    texts = [text(each) for each in shown]
    assert texts[0] == ""
    assert float(re.fullmatch(r"\[\('accuracy', ([\d.]+)\)\]", texts[1])[1]) > 0.9
    assert texts[2:6] == ["'trained'", "True (64, 2) (64, 2)", "8 8", "'ended'"]
    assert "write `await main(...)`" in texts[6]
    assert texts[7:] == ["64", '"a callback\'s"', "interrupted"]


def test_a_saved_notebook_has_one_line_of_progress(notebook):
    _, shown, _ = notebook
    lines = [it["data"]["text/plain"] for it in shown if it["output_type"] == "display_data"]
    assert lines[:2] == ["[==========] 100%"] * 2
    assert lines[2].startswith("packing  [####################] 3/3")
    assert len(lines) == len(shown) == 3


def test_the_prompt_of_asyncio():
    typed = SETUP + dedent("""
        mod.fit(data, num_epoch=4, optimizer_params={"learning_rate": 0.5})
        accuracy = mod.score(data, "acc")[0][1]
        data.reset()
        await mod.fit(data, num_epoch=1)
        print("accurate", accuracy > 0.9, mod.predict(data).asnumpy().shape)
        big = mx.nd.ones((1000, 1000))
        print(mx.nd.dot(big, big).asnumpy().max())
        async def main():
            return (await mod.predict(data)).shape

        print("ran", mx.run(main()))
        """)
    ended = subprocess.run([sys.executable, "-m", "asyncio"], input=typed, capture_output=True, text=True, timeout=120)
    assert "Error" not in ended.stderr and "Warning" not in ended.stderr, ended.stderr
    assert "accurate True (64, 2)" in ended.stdout and "1000.0" in ended.stdout and "ran (64, 2)" in ended.stdout


ROOT = Path(__file__).parent.parent.parent
README = list(tutorial.blocks((ROOT / "README.md").read_text(encoding="utf-8")))


class Console(code.InteractiveConsole):
    """A prompt that stores the errors of its input."""

    error: BaseException | None = None

    def showtraceback(self):
        self.error = self.error or sys.exc_info()[1]

    showsyntaxerror = _showtraceback = lambda self, *args, **kwargs: self.showtraceback()

    def paste(self, text):
        for line in f"{text}\n".split("\n"):
            self.push(line)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("block", README, ids=lambda block: f"line {block.line}")
def test_a_block_of_the_readme_pasted_at_the_prompt_runs_by_itself(block):
    if "sklearn" in block.code:
        pytest.importorskip("sklearn")
    Console({"__name__": "__main__"}).paste(block.code)


def test_the_tour_pasted_at_the_prompt_runs():
    console = Console({"__name__": "__main__"})
    for block in tutorial.blocks((ROOT / "docs" / "tour.md").read_text(encoding="utf-8")):
        console.paste(block.code)


def test_the_readme_pasted_at_the_prompt_of_asyncio_runs():
    pytest.importorskip("sklearn")
    typed = "".join(f"{block.code}\n" for block in README) + "print('the', 'end')\n"
    ended = subprocess.run([sys.executable, "-m", "asyncio"], input=typed, capture_output=True, text=True, timeout=120)
    assert "Error" not in ended.stderr and "Warning" not in ended.stderr, ended.stderr
    assert "('accuracy', 0." in ended.stdout and "the end" in ended.stdout


def test_the_readme_in_a_notebook_runs(tmp_path):
    pytest.importorskip("sklearn")
    for block, shown in zip(README, outputs(tmp_path, *(block.code for block in README)), strict=True):
        wrong = [it for it in shown if it["output_type"] == "error" or it.get("name") == "stderr"]
        assert not wrong, f"README.md:{block.line}: {text(wrong)}"


async def test_run_in_a_coroutine_says_to_await():
    async def main():
        return 1

    with pytest.raises(EngineError, match=r"write `await main\(\.\.\.\)`"):
        mx.run(main())


def test_a_callback_of_a_loop_is_never_blocked():
    data = mx.io.NDArrayIter(np.zeros((8, 3), "float32"), np.zeros(8, "float32"), 4)
    mod = mx.mod.Module(mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2), name="softmax"))

    async def main():
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: future.set_result(mod.fit(data, num_epoch=1)))
        coroutine = await future
        assert not mod.binded
        await coroutine
        assert mod.binded

    mx.run(main())


def test_a_notebooks_traceback_folds_frames_of_flowmx(notebook):
    _, _, shown = notebook
    for cell in (shown[0], shown[2]):
        (error,) = cell
        traceback = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error["traceback"]))
        assert error["ename"] == "ShapeError" and "mine()" in traceback and "return mx.nd.dot(" in traceback
        assert not re.search(r"(flowmx|ops|engine)/\w+\.py", traceback) and "frames of flowmx are omitted" in traceback
    assert shown[1] == [] and "flowmx" not in "".join(shown[3][0]["traceback"])
    assert re.search(
        r"\(300, 300\)\n +began +took .*ms  cpu\(0\) +dot +print\(mx\.nd\.dot\(", text(shown[4]), re.DOTALL
    )


@pytest.mark.parametrize("moment", ["before the thread", "as the thread starts", "in the coroutine"])
def test_an_interrupt_at_any_moment_leaves_nothing_running(monkeypatch, moment):
    """A fit in a notebook cell, interrupted as it began, used to continue in its thread next to the next fit."""
    ended, running, start = threading.Event(), threading.Event(), threading.Thread.start

    async def work():
        running.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    def started(thread):
        if moment == "before the thread":
            raise KeyboardInterrupt
        start(thread)
        assert running.wait(20)
        if moment == "as the thread starts":
            raise KeyboardInterrupt
        threading.Timer(0, signal.raise_signal, [signal.SIGINT]).run()

    coroutine = work()
    monkeypatch.setattr(threading.Thread, "start", started)
    with pytest.raises(KeyboardInterrupt):
        loops._run_in_thread(coroutine)
    assert ended.is_set() is (moment != "before the thread")
    assert coroutine.cr_frame is None


def test_curves_appear_once_in_a_cell_and_a_progress_bar_has_the_last_loss(tmp_path):
    shown = outputs(
        tmp_path,
        """
        curves = mx.viz.Curves()
        for epoch in range(3):
            curves.log("loss", 1 / (epoch + 1), epoch)
            curves.show()
        curves
        """,
        "curves",
        """
        for number in (bar := mx.progress.track([1, 2, 3], "epoch 1")):
            bar.show(loss=mx.nd.ones(2) * number)
        """,
    )
    for cell in shown[:2]:
        assert [output["data"]["text/html"][:4] for output in cell] == ["<svg"]
    assert text(shown[2]).startswith("epoch 1  [####################] 3/3")
    assert text(shown[2]).endswith("loss 3")
