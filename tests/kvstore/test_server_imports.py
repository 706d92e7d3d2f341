"""Custom optimizers and schedules on servers, in modules that the servers import."""

import sys

import pytest

import flowmx as mx
from flowmx import nd, settings
from flowmx.cli import main
from flowmx.comm.launch.job import Launcher, Plan
from flowmx.errors import KVStoreError
from flowmx.kvstore import imports
from flowmx.kvstore.launching import command
from flowmx.kvstore.launching.node_command import _parser as node_parser
from tests.comm.test_launch import environ, program
from tests.jobs import job

OWN = """
import flowmx as mx

class Falling(mx.lr_scheduler.LRScheduler):
    def __init__(self, by, **kwargs):
        super().__init__(**kwargs)
        self.by = by

    def __call__(self, num_update):
        return self.base_lr * self.by ** num_update

@mx.optimizer.register
class Boosted(mx.optimizer.Optimizer):
    def __init__(self, boost=1.0, **kwargs):
        super().__init__(**kwargs)
        self.boost = boost

    def step(self, weight, grad, state, lr, wd, t):
        weight -= lr * self.boost * grad
"""

PROGRAM = """
import flowmx as mx, own_rules
kv = mx.kv.create("dist_sync")
kv.init("w", mx.nd.zeros((2,)))
kv.set_optimizer(own_rules.Boosted(2.0, lr_scheduler=own_rules.Falling(0.5, base_lr=8.0)))
out = mx.nd.zeros((2,))
for _ in range(2):
    kv.pushpull("w", mx.nd.ones((2,)), out)
print("value", out.asnumpy()[0], flush=True)
"""


async def test_servers_import_modules_of_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "own_rules.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    plan = Plan(program(tmp_path, PROGRAM), 1, 1, environ=imports.with_imports(environ(), ["own_rules"]), grace=5.0)
    lines = []
    assert await Launcher(plan, lambda name, line: lines.append((name, line))).run() == 0, lines
    assert ("worker 0", "value -12.0") in lines


@pytest.mark.parametrize("parse", [command.parser, node_parser])
def test_launch_and_node_take_modules(parse):
    inputs = parse().parse_args(["--import", "a", "--import", "b.c", "--", "python", "x.py"])
    assert imports.with_imports({imports.VARIABLE: "z"}, inputs.imports)[imports.VARIABLE] == "z,a,b.c"
    assert imports.with_imports({}, []) == {}


def test_a_missing_module_ends_the_server(capsys, caplog, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [item for item in sys.path if item])
    assert main(["server", "--import", "no_such_rules"]) == 1
    output = capsys.readouterr().err + caplog.text
    assert "--import no_such_rules" in output and str(tmp_path) in output
    assert "No module named 'no_such_rules'" in output


def test_the_working_folder_is_searched(tmp_path, monkeypatch):
    (tmp_path / "rules_of_this_folder.py").write_text("IMPORTED = True\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [item for item in sys.path if item])
    with settings.override(kvstore_import=" rules_of_this_folder ,"):
        imports.import_all()
    assert sys.modules.pop("rules_of_this_folder").IMPORTED


@pytest.mark.parametrize(
    ("module", "advice"), [("__main__", "--import schedules"), ("rules.mine", "--import rules.mine")]
)
def test_a_worker_gets_advice_on_the_option(module, advice):
    def work(kv):
        class Unknown(mx.lr_scheduler.LRScheduler):
            def __call__(self, num_update):
                return 0.1

        Unknown.__module__ = module
        mx.lr_scheduler.LRScheduler.classes.pop("Unknown")
        kv.init("w", nd.zeros((2,)))
        kv.set_optimizer(mx.optimizer.SGD(lr_scheduler=Unknown(base_lr=0.1)))
        out = nd.zeros((2,))
        kv.pull("w", out)
        with pytest.raises(KVStoreError) as caught:
            out.wait_to_read()
        return str(caught.value)

    with job(1, 1) as cluster:
        error = cluster.each(work)[0]
    assert advice in error and "Unknown" in error and "FLOWMX_KVSTORE_IMPORT" in error
