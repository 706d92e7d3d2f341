"""SIGTERM: a program finishes its step, writes a checkpoint if it has one, and ends within its time limit."""

import os
import re
import subprocess
import sys
import time

import pytest

FIT = """
import os, signal, sys
import numpy as np
import flowmx as mx
at = int(sys.argv[2])
mx.random.seed(3); np.random.seed(3)
x = np.random.rand(64, 4).astype("f")
data = mx.io.NDArrayIter(x, (x.sum(1) > 2).astype("f"), 8)
out = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc"), name="softmax")
mod = mx.mod.Module(out)

def after(param):
    print("batch", param.epoch, param.nbatch, flush=True)
    if (param.epoch, param.nbatch) == (0, at):
        os.kill(os.getpid(), signal.SIGTERM)

mod.fit(data, num_epoch=2, optimizer="adam", initializer=mx.init.Xavier(), checkpoint=sys.argv[1],
        batch_end_callback=after)
print("weights", mod.get_params()[0]["fc_weight"].asnumpy().sum())
"""

GLUON = """
import os, signal, sys
import numpy as np
import flowmx as mx
at = int(sys.argv[2])
mx.random.seed(3); np.random.seed(3)
x = np.random.rand(64, 4).astype("f")
data = mx.io.NDArrayIter(x, (x.sum(1) > 2).astype("f"), 8)
net = mx.gluon.nn.Dense(2, in_units=4)
net.initialize(mx.init.Xavier())
trainer = mx.gluon.Trainer(net.collect_params(), "adam")
loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
run = mx.checkpoint.Run(sys.argv[1], net=net, trainer=trainer, data=data)
run.resume()
for epoch in range(run.epoch, 2):
    for batch in data:
        if (run.epoch, run.batch) == (0, at):
            os.kill(os.getpid(), signal.SIGTERM)
        with mx.autograd.record():
            loss = loss_of(net(batch.data[0]), batch.label[0])
        loss.backward()
        trainer.step(8)
        print("batch", run.epoch, run.batch, flush=True)
        run.batch_end()
    data.reset()
    run.epoch_end()
print("weights", net.weight.data().asnumpy().sum())
"""


def ran(code, *arguments, timeout=20.0):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_", "DMLC_"))}
    environ = inherited | {"FLOWMX_LEAVE_TIMEOUT": str(timeout)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("code", [FIT, GLUON], ids=["fit", "gluon"])
def test_sigterm_finishes_the_batch_and_writes_a_checkpoint_to_resume_from(code, tmp_path):
    whole = ran(code, tmp_path / "whole", -1)
    first = ran(code, tmp_path / "run", 3)
    assert first.returncode == 143, first.stderr
    assert "SIGTERM received" in first.stderr and "weights" not in first.stdout
    done = int(re.findall(r"batch 0 (\d+)", first.stdout)[-1]) + 1
    assert done in (4, 5)  # fit notices the signal in the callback, and then takes the next batch
    assert [path.name for path in (tmp_path / "run").iterdir()] == [f"epoch-0000-batch-{done:06d}.checkpoint"]
    second = ran(code, tmp_path / "run", -1)
    assert second.returncode == 0, second.stderr
    assert f"batch 0 {done}" in second.stdout and "batch 0 0\n" not in second.stdout
    assert second.stdout.splitlines()[-1] == whole.stdout.splitlines()[-1]


REFERENCES_OF_ATTRIBUTE = """
import os, signal, sys, threading
from flowmx import program
program.install_sigterm_handler()
with program.defer_shutdown():
    os.kill(os.getpid(), signal.SIGTERM)
    print("continues", flush=True)
    {}
"""


@pytest.mark.parametrize(
    ("then", "timeout", "status"),
    [
        ("program.shut_down()", 20, 143),
        ("sys.exit(0)", 20, 0),
        ("os.kill(os.getpid(), signal.SIGTERM); print('deaf')", 20, 143),
        ("threading.Event().wait(); print('deaf')", 0.4, 143),
        (
            "while True:\n        try: threading.Event().wait()\n        except SystemExit: pass",
            0.4,
            143,
        ),
    ],
    ids=["leaves", "finishes", "a second signal", "waits for ever", "is deaf"],
)
def test_a_program_ends_within_its_time_limit_after_sigterm(then, timeout, status):
    begun = time.monotonic()
    process = ran(REFERENCES_OF_ATTRIBUTE.format(then), timeout=timeout)
    assert process.returncode == status, process.stderr
    assert process.stdout == "continues\n"
    assert time.monotonic() - begun < 15


def test_a_program_with_nothing_to_finish_ends_at_once():
    process = ran(
        "import os, signal\nfrom flowmx import program\nprogram.install_sigterm_handler()\nos.kill(os.getpid(), 15)\nx"
    )
    assert (process.returncode, process.stdout) == (143, ""), process.stderr


def test_a_handler_of_the_program_is_not_replaced():
    process = ran(
        "import signal\nfrom flowmx import program\nsignal.signal(15, print)\nprogram.install_sigterm_handler()\n"
        "assert signal.getsignal(signal.SIGTERM) is print"
    )
    assert process.returncode == 0, process.stderr
