"""Modules that are imported at their first use."""

import os
import subprocess
import sys

import pytest

import flowmx as mx
from flowmx.lazy import lazy_attributes

pytestmark = pytest.mark.usefixtures("new_python")


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_flowmx_skips_rarely_used_modules():
    slow = (
        "aiohttp",
        "urllib.request",
        "http.client",
        "flowmx.image",
        "flowmx.amp",
        "flowmx.contrib.onnx",
        "flowmx.gluon.data",
        "onnx",
    )
    assert run(f"import sys, flowmx; print([each for each in {slow!r} if each in sys.modules])") == "[]\n"


NAMES = (
    "amp", "contrib.onnx", "img.imdecode", "rnn.LSTMCell", "gluon.data.DataLoader", "gluon.model_zoo.vision",
    "gluon.contrib.estimator", "kv.DistKVStore", "recordio.MXRecordIO", "test_utils.assert_almost_equal",
)  # fmt: skip
FIRST_USES = f"""
import os, sys
import flowmx as mx
for name in {NAMES}:
    if not os.fork():  # each is the first use in its process
        value = eval(f"mx.{{name}}")
        print(name, bool(callable(value) or value.__name__), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_name_is_loaded_at_its_first_use():
    assert run(FIRST_USES).splitlines() == [f"{name} True" for name in NAMES]


def test_names_are_listed_before_they_are_loaded():
    assert "['amp', 'onnx']" in run("import flowmx; print([n for n in dir(flowmx) if n in ('amp', 'onnx')])")


def test_unknown_names_are_refused_as_usual():
    with pytest.raises(AttributeError, match="'flowmx' has no attribute 'nothing'"):
        _ = mx.nothing


def test_a_name_may_stand_for_an_attribute_of_a_module():
    find, _ = lazy_attributes("tests.engine.test_lazy_imports", {"there": "os.path:join"})
    import os.path

    assert find("there") is os.path.join


def test_the_installed_numpy_has_all_names():
    for module in (mx.np, mx.np.linalg, mx.np.random, mx.npx):
        assert [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)] == []
