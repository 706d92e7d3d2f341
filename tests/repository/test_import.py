"""``import flowmx`` changes nothing in the process, and loads little."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import flowmx as mx

pytestmark = pytest.mark.usefixtures("new_python")
ROOT = Path(__file__).parent.parent.parent

COUNT = """
import atexit, json, os, sys, threading
forks = []
os.register_at_fork = lambda **hooks: forks.extend(hooks.values())
before = sys.excepthook, list(sys.meta_path), list(sys.path_hooks), threading.excepthook, sys.unraisablehook
exits, register = [], atexit.register
atexit.register = lambda function, *args, **kwargs: exits.append(function) or register(function, *args, **kwargs)
import flowmx
ours = lambda functions: [str(each) for each in functions if "flowmx" in str(getattr(each, "__module__", ""))]
print(json.dumps({
    "unchanged": before == (
        sys.excepthook, list(sys.meta_path), list(sys.path_hooks), threading.excepthook, sys.unraisablehook
    ),
    "exits": ours(exits), "forks": ours(forks), "threads": threading.active_count(),
    "modules": sum(name.partition(".")[0] == "flowmx" for name in sys.modules),
    "heavy": sorted({"aiohttp", "uvloop", "llvmlite", "onnx", "cupy", "PIL", "requests"} & sys.modules.keys()),
}))
"""


def run(script, **environment):
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_is_changed():
    counts = json.loads(run(COUNT))
    assert counts.pop("modules") <= 300
    assert counts == {"unchanged": True, "exits": [], "forks": [], "threads": 1, "heavy": []}


def test_importing_takes_a_few_times_as_long_as_numpy(tmp_path):
    """0.3 s on an idle machine (``python -m benchmarks importing``); this limit is for loaded ones."""
    script = "import time; start = time.process_time(); import flowmx; print(time.process_time() - start)"
    cached = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    run(script, **cached)
    assert min(float(run(script, **cached)) for _ in range(3)) < 1.0


def test_the_first_operation_installs_the_hooks_and_they_can_be_removed():
    assert run("""
import sys
before = sys.excepthook
import flowmx as mx
from flowmx import process_hooks
assert not process_hooks.is_installed()
mx.nd.ones((2, 3)).asnumpy()
assert process_hooks.is_installed() and sys.excepthook is not before
process_hooks.uninstall()
assert not process_hooks.is_installed() and sys.excepthook is before
process_hooks.uninstall()
process_hooks.install()
assert sys.excepthook is not before
sys.excepthook = mine = lambda *_: None
process_hooks.uninstall()
assert sys.excepthook is mine
print("done")
""") == "done\n"  # fmt: skip


def test_exit_functions_run_in_reverse_order_and_may_compute():
    assert run("""
import atexit
import flowmx as mx
from flowmx import process_hooks
atexit.register(lambda: print((x * 2).asnumpy().sum(), mx.nd.ones((300, 300)).sum().asscalar()))
process_hooks.at_exit(lambda: print("second"))
process_hooks.at_exit(lambda: print("first"))
x = mx.nd.ones((100, 100))
(x + 1).wait_to_read()
""").split() == ["first", "second", "20000.0", "90000.0"]  # fmt: skip


def test_a_failing_exit_function_does_not_stop_the_others():
    assert run("""
from flowmx import process_hooks
process_hooks.install()
process_hooks.at_exit(lambda: print("second"))
process_hooks.at_exit(lambda: 1 / 0)
""") == "second\n"  # fmt: skip


FORKS = """
import os, sys
from flowmx import process_hooks
def note(text):
    os.write(1, text.encode() + b" ")
def add(name):
    process_hooks.at_fork(
        before=lambda: note(f"before-{name}") or late(name), after_in_parent=lambda: note(f"parent-{name}"),
        after_in_child=lambda: note(f"child-{name}"),
    )
def late(name):
    if name == "b" and "late" in sys.argv:
        add("late")  # another thread imports a module while this one forks
    if name == "b" and "fails" in sys.argv:
        raise ValueError("planted")
def fork():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
add("a")
add("b")
process_hooks.install()
fork()
process_hooks.uninstall()
fork()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("case", ["", "late", "fails"])
def test_functions_run_around_a_fork_in_pythons_order_and_in_pairs(case):
    notes = run(FORKS.replace("import os, sys\n", f"import os, sys; sys.argv.append({case!r})\n")).split()
    assert notes[:2] == ["before-b", "before-a"]
    assert [note for note in notes if note.startswith("parent")] == ["parent-a", "parent-b"]
    assert [note for note in notes if note.startswith("child")] == ["child-a", "child-b"]
    assert len(notes) == 6


def test_hooks_that_a_program_has_removed_stay_removed():
    assert run("""
import sys
import flowmx as mx
from flowmx import process_hooks
process_hooks.uninstall()
mx.nd.ones((2, 3)).asnumpy()
mx.gluon.data.DataLoader(mx.gluon.data.SimpleDataset([1, 2]), 1)
assert not process_hooks.is_installed() and sys.excepthook is sys.__excepthook__
process_hooks.install()
assert process_hooks.is_installed()
print("done")
""") == "done\n"  # fmt: skip


def test_a_hook_that_calls_the_one_it_replaced_ends():
    script = """
import sys
from flowmx import process_hooks
process_hooks.install()
replaced = sys.excepthook
def mine(*error):
    sys.stderr.write("mine\\n")
    replaced(*error)
sys.excepthook = mine
process_hooks.uninstall()
process_hooks.install()
raise ValueError("planted")
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    assert done.returncode == 1
    assert done.stderr.count("mine") == 1 and done.stderr.count("ValueError: planted") == 1


REAL = {
    "autograd": {
        "Function", "backward", "get_symbol", "grad", "is_recording", "is_training", "mark_variables", "pause",
        "predict_mode", "record", "set_recording", "set_training", "train_mode",
    },
    "recordio": {"IRHeader", "MXIndexedRecordIO", "MXRecordIO", "pack", "pack_img", "unpack", "unpack_img"},
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_dir_lists_the_names_that_a_module_offers(name):
    assert set(dir(getattr(mx, name))) >= REAL[name]


MODULES = [name for name in mx.__all__ if isinstance(getattr(mx, name), ModuleType)]
IMPORTS = {"Any", "Callable", "TYPE_CHECKING", "annotations", "importlib", "logging", "partial"}


@pytest.mark.parametrize("name", MODULES)
def test_dir_lists_no_imports_and_only_names_that_exist(name):
    module = getattr(mx, name)
    assert not IMPORTS & set(dir(module))
    assert all(hasattr(module, each) for each in dir(module))


@pytest.mark.parametrize("path", ["flowmx.autograd", "flowmx.gluon.block", "flowmx.io"])
def test_modules_are_loaded_by_python_itself(path):
    spec = importlib.import_module(path).__spec__
    assert type(spec.loader).__name__ == "SourceFileLoader"
    assert spec.origin.endswith(".py")


def test_mxnets_module_paths_can_be_imported():
    assert run("""
import sys
from flowmx.ndarray.ndarray import NDArray
import flowmx.io.io, flowmx.module.base_module
import flowmx as mx
assert NDArray is mx.nd.NDArray and flowmx.io.io.NDArrayIter is mx.io.NDArrayIter
assert mx.base.py_str(b"a") == "a" and mx.model.FeedForward and mx.gluon.parameter.ParameterDict
print("done")
""") == "done\n"  # fmt: skip
