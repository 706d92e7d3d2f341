"""Modules that are imported at their first use."""

import os
import subprocess
import sys

import pytest

import flowmx as mx
from flowmx.lazy import later

pytestmark = pytest.mark.usefixtures("new_python")


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_flowmx_leaves_out_what_few_programs_use():
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
        found = eval(f"mx.{{name}}")
        print(name, bool(callable(found) or found.__name__), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_name_is_there_when_it_is_asked_for():
    assert run(FIRST_USES).splitlines() == [f"{name} True" for name in NAMES]


def test_names_are_listed_before_they_are_there():
    assert "['amp', 'onnx']" in run("import flowmx; print([n for n in dir(flowmx) if n in ('amp', 'onnx')])")


def test_other_names_are_refused_as_ever():
    with pytest.raises(AttributeError, match="'flowmx' has no attribute 'nothing'"):
        _ = mx.nothing


def test_a_name_may_stand_for_what_is_in_a_module():
    find, _ = later("tests.test_lazy", {"there": "os.path:join"})
    import os.path

    assert find("there") is os.path.join
