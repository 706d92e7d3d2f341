"""Errors can be caught both as MXNet's exceptions and as Python's built-in ones."""

import builtins
import errno
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from flowmx.errors import MXNetError, NotImplementedForSymbol, as_mxnet_error, raised_as_mxnet
from tests.fixtures.mistakes import MISTAKES

RECORDED = json.loads(Path(__file__).parent.with_name("fixtures").joinpath("exceptions.json").read_text("utf-8"))
OWN = {
    "MXNetError": MXNetError,
    "NotImplementedForSymbol": NotImplementedForSymbol,
    "DeferredInitializationError": mx.gluon.parameter.DeferredInitializationError,
}
PYTHONS = {
    "take_out_of_range": IndexError,
    "imdecode_garbage": ValueError,
    "imread_missing": FileNotFoundError,
    "nd_load_missing": FileNotFoundError,
    "nd_save_nodir": FileNotFoundError,
    "sym_load_missing": FileNotFoundError,
    "rec_missing": FileNotFoundError,
    "csviter_missing": FileNotFoundError,
    "shape_mismatch": ValueError,
    "unknown_kw": ValueError,
    "summary_hybridized": RuntimeError,
    "mod_forward_unbound": RuntimeError,
    "hybrid_int": TypeError,
    "mod_set_params_missing": ValueError,
    "load_missing_param": ValueError,
    "load_bad_shape": ValueError,
    "ctx_bad": ValueError,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MISTAKES)
def test_errors_are_caught_as_mxnets_types(name):
    kind = OWN.get(RECORDED[name]) or getattr(builtins, RECORDED[name])
    with pytest.raises(kind) as caught:
        MISTAKES[name](mx)
    assert isinstance(caught.value, PYTHONS.get(name, Exception))


class Mine(Exception):
    def __init__(self, number, *, text):
        super().__init__(f"{number} {text}")
        self.number = number


@mx.operator.register("raising")
class RaisingProp(mx.operator.CustomOpProp):
    def __init__(self, where="forward"):
        super().__init__()
        self.where = where

    def infer_shape(self, in_shape):
        if self.where == "infer_shape":
            raise Mine(1, text="mine")
        return super().infer_shape(in_shape)

    def create_operator(self, ctx, shapes, dtypes):
        return Raising(self.where)


class Raising(mx.operator.CustomOp):
    def __init__(self, where):
        super().__init__()
        self.where = where

    def forward(self, is_train, req, in_data, out_data, aux):
        if self.where == "forward":
            raise Mine(1, text="mine")
        self.assign(out_data[0], req[0], in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        raise Mine(1, text="mine")


@mx.operator.register("raising_coroutine")
class RaisingCoroutineProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return RaisingCoroutine()


class RaisingCoroutine(mx.operator.CustomOp):
    async def forward(self, is_train, req, in_data, out_data, aux):
        raise Mine(1, text="mine")


@pytest.mark.parametrize("kind", [Mine, MXNetError])
@pytest.mark.parametrize("where", ["forward", "backward", "infer_shape"])
def test_errors_of_a_custom_operator_are_caught_either_way(kind, where):
    def train():
        x = mx.nd.ones(3)
        x.attach_grad()
        with mx.autograd.record():
            y = mx.nd.Custom(x, op_type="raising", where=where)
        y.asnumpy()
        y.backward()
        x.grad.asnumpy()

    with pytest.raises(kind, match="1 mine") as caught:
        train()
    assert caught.value.number == 1
    assert type(caught.value).__name__ == "Mine"


@pytest.mark.parametrize("kind", [Mine, MXNetError])
def test_errors_of_a_coroutine_are_caught_either_way(kind):
    with pytest.raises(kind, match="1 mine"):
        mx.nd.Custom(mx.nd.ones(3), op_type="raising_coroutine").asnumpy()


@pytest.mark.parametrize("error", [
    FileNotFoundError(errno.ENOENT, "gone", "a file"), PermissionError(errno.EACCES, "no", "a", None, "b"),
    KeyError("key"), UnicodeDecodeError("utf8", b"a", 0, 1, "reason"), RuntimeError("plain"), Exception("any"),
    Mine(3, text="own"), ImportError("no module", name="x"), np.exceptions.AxisError(3, 2),
])  # fmt: skip
def test_an_exception_keeps_its_type_text_and_notes(error):
    error.add_note("a note")
    both = as_mxnet_error(error)
    for exception in (both, pickle.loads(pickle.dumps(both))):
        assert isinstance(exception, type(error))
        assert isinstance(exception, MXNetError)
        assert str(exception) == str(error)
        assert exception.args == error.args
        assert exception.__notes__ == ["a note"]
        assert type(exception).__name__ == type(error).__name__
    for name in ("filename", "filename2", "errno", "number", "reason", "name"):
        assert getattr(both, name, None) == getattr(error, name, None)


def test_an_exception_of_mxnets_own_stays_the_same_object():
    error = mx.errors.ShapeError("shape")
    assert as_mxnet_error(error) is error
    with pytest.raises(mx.errors.ShapeError) as caught, raised_as_mxnet(Exception):
        raise error
    assert caught.value is error


def test_the_cause_and_the_traceback_stay():
    cause = ValueError("cause")
    with pytest.raises(KeyError) as caught, raised_as_mxnet(KeyError):
        raise KeyError("key") from cause
    assert caught.value.__cause__ is cause
    assert "raise KeyError" in str(caught.traceback[-1].statement)


def test_the_context_stays_and_the_original_is_not_shown_twice():
    @raised_as_mxnet(Exception)
    def fail():
        try:
            raise ValueError("first")
        except ValueError:
            raise StopIteration("second")  # noqa: B904 - without a cause

    with pytest.raises(MXNetError) as caught:
        fail()
    assert isinstance(caught.value, StopIteration)
    assert str(caught.value.__context__) == "first"
    assert not caught.value.__suppress_context__


def test_superfluous_parameters_cause_a_warning():
    data = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc"), name="softmax")
    module = mx.mod.Module(data)
    module.bind([("data", (1, 2))], [("softmax_label", (1,))])
    module.init_params()
    arg, aux = module.get_params()
    with pytest.warns(UserWarning, match="no parameter 'more'"):
        module.set_params({**arg, "more": mx.nd.ones(1)}, aux)
    with pytest.raises(ValueError, match="no parameter 'more'"):
        module.set_params({"more": mx.nd.ones(1)}, aux, allow_missing=True)
    assert np.isfinite(module.get_params()[0]["fc_weight"].asnumpy()).all()
