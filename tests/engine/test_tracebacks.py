"""Tracebacks: flowmx's frames are folded when a program ends with an error, and shown on request."""

import os
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest

import flowmx as mx
from flowmx import settings, tracebacks

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = """
import flowmx as mx

class Net(mx.gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.first = mx.gluon.nn.Dense(4, in_units=3)
        self.second = mx.gluon.nn.Dense(2, in_units=7)

    def hybrid_forward(self, F, x):
        return self.second(self.first(x))

net = Net()
net.initialize()
net(mx.nd.ones((2, 3)))
"""


def ended(path, *options, text=PROGRAM, **environment):
    path.write_text(text)
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run([sys.executable, *options, str(path)], capture_output=True, text=True, env=env)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.parametrize("options", [[], ["-m", "flowmx", "run"]])
def test_a_program_that_fails_shows_its_own_lines(tmp_path, options):
    shown = ended(tmp_path / "program.py", *options)
    assert "net(mx.nd.ones((2, 3)))" in shown
    assert "return self.second(self.first(x))" in shown
    assert "/basic_layers.py" not in shown
    after = shown.partition("net(mx.nd.ones((2, 3)))")[2]
    assert after.count("frames of flowmx; FLOWMX_TRACEBACKS=full shows them]") == 2
    *_, error, note = shown.splitlines()
    assert error.startswith("flowmx.errors.ShapeError: FullyConnected: input weight has shape (2, 7), expected (2, 4)")
    assert note == "flowmx: in block 'second' of Net: Dense(7 -> 2, linear), given float32[2, 4]"


def test_frames_between_flowmxs_frames_are_folded_with_them(tmp_path):
    """Frames of asyncio that flowmx called are folded; those that the program called stay."""
    text = """
import asyncio
import flowmx as mx

async def main():
    raise ValueError("planted")

asyncio.run(main()) if __name__ == "other" else mx.run(main())
"""
    shown = ended(tmp_path / "program.py", text=text)
    assert "asyncio" not in shown.partition("mx.run(main())")[2] and "uvloop" not in shown
    own = ended(tmp_path / "program.py", text=text.replace('"other"', '"__main__"'))
    assert "runners.py" in own


def test_all_frames_are_shown_on_demand(tmp_path):
    shown = ended(tmp_path / "program.py", FLOWMX_TRACEBACKS="full")
    assert "/basic_layers.py" in shown
    assert "frames of flowmx;" not in shown


def test_a_previously_installed_hook_is_called(tmp_path):
    hook = "import sys\nsys.excepthook = lambda kind, *_: print('mine', kind.__name__, file=sys.stderr)\n"
    shown = ended(tmp_path / "program.py", text=hook + PROGRAM)
    assert shown.splitlines()[-1] == "mine ShapeError"


def test_a_hybridized_network_names_the_line_of_the_layer(tmp_path):
    path = tmp_path / "program.py"
    shown = ended(path, text=PROGRAM.replace("net.initialize()", "net.initialize()\nnet.hybridize()"))
    assert f"made at {path}:11 in hybrid_forward: return self.second(self.first(x))" in shown
    assert "/cached_op/" not in shown


def adds():
    mx.nd.ones((2, 3)) + mx.nd.ones((4, 5))


def raised(function):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        function()
    return caught.value


def test_causes_and_groups_are_folded_too():
    def chained():
        try:
            adds()
        except mx.MXNetError as error:
            raise ExceptionGroup("several", [error]) from error

    text = tracebacks.format_folded(raised(chained))
    assert "direct cause" in text
    assert text.count("of flowmx; FLOWMX_TRACEBACKS") == 2
    assert "/ndarray/" not in text


def test_a_traceback_of_only_flowmxs_frames_is_not_folded():
    error = raised(adds)
    text = tracebacks.format_folded(error, error.__traceback__.tb_next.tb_next)
    assert "/ndarray/" in text
    assert "of flowmx;" not in text


def test_an_invalid_setting_hides_nothing(monkeypatch):
    error = raised(adds)

    def refused():
        raise settings.SettingError("FLOWMX_X")

    monkeypatch.setattr(settings, "get", refused)
    assert "/ndarray/" in tracebacks.format_folded(error)


def test_the_extension_of_ipython_folds_the_tracebacks_of_the_shell_and_gives_it_the_magic():
    def structured_traceback(kind, error, trace):
        return [line for frame, line in traceback.walk_tb(trace)]

    magics = []
    writer = SimpleNamespace(structured_traceback=structured_traceback)
    shell = SimpleNamespace(
        InteractiveTB=writer, register_magic_function=lambda run, kind, name: magics.append((kind, name))
    )
    mx.load_ipython_extension(shell)
    assert magics == [("cell", "engine")]
    error = raised(lambda: mx.nd.ones((2, 3)).reshape((7, 7)).asnumpy())
    text = writer.structured_traceback(type(error), error, error.__traceback__)
    assert 0 < len(text) < len(structured_traceback(type(error), error, error.__traceback__))


CALLS = {
    "nn.TransformerEncoderLayer(d_model=32, nhead=4)": "; d_model is units here; nhead is num_heads here",
    "nn.Embedding(num_embeddings=10, embedding_dim=4)": "; num_embeddings is input_dim here; embedding_dim is "
    "output_dim here",
    "nn.Dropout(p=0.5)": "; p is rate here",
    "nn.BatchNorm(num_features=3, eps=1e-5)": "; num_features is in_channels here; eps is epsilon here",
    "gluon.data.DataLoader([1], 1, drop_last=True)": "; drop_last is last_batch='discard' here",
    "gluon.loss.L2Loss(reduction='mean')": "; reduction has no equivalent: losses are one number for each sample; use "
    ".mean() or .sum()",
    "mx.optimizer.Adam(lr=0.1, weight_decay=0.1)": "; lr is learning_rate here; weight_decay is wd here",
    "mx.lr_scheduler.FactorScheduler(step_size=10, gamma=0.1)": "; step_size is step here; gamma is factor here",
    "mx.metric.TopKAccuracy(k=5)": "; k is top_k here",
    "mx.serve.Predictor(1, batch_size=8)": "; batch_size is max_batch here",
}


@pytest.mark.parametrize("call", CALLS)
def test_arguments_of_other_libraries_are_named_by_the_error(call):
    names = {"mx": mx, "gluon": mx.gluon, "nn": mx.gluon.nn}
    with pytest.raises(TypeError) as caught:
        eval(call, names)
    assert str(caught.value).endswith(CALLS[call])


def test_hints_name_only_arguments_that_a_class_has():
    class Net(mx.gluon.Block):
        def __init__(self, rate):
            super().__init__()

    with pytest.raises(TypeError, match=r"Net has no argument 'd_model', expected some of rate$"):
        Net(d_model=3)
    with pytest.raises(TypeError, match=r"Net has no argument 'p', expected some of rate; p is rate here$"):
        Net(p=3)


def test_an_error_before_the_first_operation_is_folded_too(tmp_path):
    text = "from flowmx.gluon import nn\nnn.Dropout(p=0.5)\n"
    shown = ended(tmp_path / "program.py", text=text)
    assert "frames of flowmx" in shown
    assert "/keywords.py" not in shown


def test_an_argument_of_another_librarys_function_is_named_by_a_note(tmp_path):
    text = "import flowmx as mx\nmx.nd.ones((1,)) + 1\nmx.nd.zeros((2,), device='cpu')\n"
    assert ended(tmp_path / "program.py", text=text).endswith("flowmx: device is ctx or context here\n")
