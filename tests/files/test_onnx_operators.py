"""Every converter: the rows of tests/op_cases written as ONNX, run by onnxruntime, and read back."""

import importlib
import pkgutil

import numpy as np
import pytest

import flowmx as mx
import tests.op_cases
from flowmx.contrib import onnx as mxonnx
from flowmx.contrib.onnx.converters import counterparts, exporters, importers
from flowmx.contrib.onnx.opsets import OLDEST, first_opset
from flowmx.ops.registry.operators import lookup
from tests.onnx_round import check, close, runtime, write

PARAMS = {"weight", "bias", "gamma", "beta", "parameters"}
# Tables and rows about NaN, infinities, empty arrays and arrays without axes, where ONNX has different rules.
LEFT_OUT = {"empty", "optimizers"}
NOTES = ("special", "nan", "outside", "single", "one", "empty")
# Unsupported rows: a part of the row's name, and of the reason.
REFUSED = {
    "projection_size": "projection_size is 2",
    "lstm_state_clip": "it clips its cells",
    "ret_typ=mask": "ret_typ is 'mask'",
    "empty windows": "entirely beyond",
    "position_sensitive": "position_sensitive is True",
    "aligned=True": "needs opset 16",
}
RANDOM = {"_random_normal", "_random_uniform", "_random_normal_like", "_random_uniform_like", "_sample_multinomial"}


def rows():
    for module in pkgutil.iter_modules(tests.op_cases.__path__):
        for case in getattr(importlib.import_module(f"tests.op_cases.{module.name}"), "CASES", []):
            if lookup(case.op).name in exporters() and module.name not in LEFT_OUT:
                yield case


def has_usual_numbers(case):
    arrays = case.call_inputs()
    return (
        not any(note in case.note for note in NOTES)
        and all(np.isfinite(each).all() and each.size and each.ndim for each in arrays)
        and not (case.op.endswith("mod_scalar") and float(case.params.get("scalar", 1)) == 0)
    )


ROWS = [case for case in rows() if has_usual_numbers(case)]
KEPT = [case for case in ROWS if not any(part in case.id for part in REFUSED)]
REFUSALS = [case for case in ROWS if any(part in case.id for part in REFUSED)]


def model_of(case):
    """Return the operator of a row as a symbol, its parameters, and its inputs."""
    cls, arrays = lookup(case.op), case.call_inputs()
    counted = {cls.variadic: len(arrays)} if cls.variadic and cls.variadic not in case.params else {}
    op = cls.create(**{**case.params, **counted})
    names = (*op.inputs(), *op.auxiliary)
    symbol = mx.sym.op.op(case.op, *[mx.sym.var(name) for name in names], name="made", **case.params)
    operands = {
        name: array for name, array in zip(names, arrays, strict=True) if not (op.traits.is_loss and name == "label")
    }
    params = {
        name: mx.nd.array(x, dtype=x.dtype) for name, x in operands.items() if name in PARAMS or name in op.auxiliary
    }
    inputs = {name: x for name, x in operands.items() if name not in params}
    return symbol[0] if case.op == "LeakyReLU" else symbol, params, inputs


def by_operator(cases):
    """All rows of an operator are one test, since the setup of a test takes longer than a row."""
    names = dict.fromkeys(lookup(case.op).name for case in cases)
    return [pytest.param([c for c in cases if lookup(c.op).name == name], id=name) for name in names]


@pytest.mark.parametrize("cases", by_operator(KEPT))
def test_onnxruntime_and_the_reimported_symbol_compute_the_same(cases, tmp_path):
    for case in cases:
        try:
            opset = max(OLDEST, first_opset(lookup(case.op).onnx or "Identity"))
            # ONNX divides by a scale where MXNet multiplies, so half steps may be rounded up or down.
            steps = int(lookup(case.op).name.startswith("_contrib_quantize"))
            check(tmp_path, *model_of(case), steps=steps, opset_version=opset)
        except Exception as error:
            error.add_note(f"row {case.id}")
            raise


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.id)
def test_operators_without_a_counterpart_are_refused_by_name(case, tmp_path):
    reasons = "|".join(why for part, why in REFUSED.items() if part in case.id)
    with pytest.raises(mxonnx.ONNXError, match=rf"'made' .*({reasons})"):
        write(str(tmp_path / "model.onnx"), *model_of(case))
    assert not (tmp_path / "model.onnx").exists()


def test_every_converter_has_a_row():
    parts = {"_sg_mkldnn_conv", "_sg_mkldnn_fully_connected"}  # with bodies: tests/ops/test_int8.py
    parts |= {"_quantize_linear", "_dequantize_linear", "_dequantize_constant"}  # tests/files/test_onnx_quantized.py
    assert set(exporters()) - {lookup(case.op).name for case in KEPT} == RANDOM | parts


def test_an_operator_that_needs_a_later_opset_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(lookup("tanh"), "onnx", "Mish")
    symbol, inputs = mx.sym.tanh(mx.sym.var("data"), name="made"), {"data": np.zeros((2, 3), "float32")}
    with pytest.raises(mxonnx.ONNXError, match=r"'made' \(tanh\): Mish needs opset 18, not 13: set opset_version"):
        write(str(tmp_path / "model.onnx"), symbol, {}, inputs)
    write(str(tmp_path / "model.onnx"), symbol, {}, inputs, opset_version=18)


def test_operators_with_the_same_counterpart_need_a_converter(monkeypatch):
    monkeypatch.setattr(lookup("where"), "onnx", "Tanh")
    with pytest.raises(ValueError, match="tanh and where are both ONNX's Tanh, expected a converter"):
        counterparts.__wrapped__()


@pytest.mark.parametrize("opset", [17, 21])
def test_later_opsets_compute_the_same(opset, tmp_path):
    changed = {
        "LayerNorm",
        "LeakyReLU",
        "mean",
        "max",
        "min",
        "prod",
        "norm",
        "moments",
        "_contrib_ROIAlign",
        "Pad",
        "SliceChannel",
    }
    cases = [case for case in ROWS if lookup(case.op).name in changed and "position_sensitive" not in case.id]
    for case in cases:
        check(tmp_path, *model_of(case), opset_version=opset)


def test_random_numbers_are_drawn_from_the_same_distributions(tmp_path):
    path, data = str(tmp_path / "model.onnx"), mx.sym.var("data")
    symbol = mx.sym.Group([
        mx.sym.random_normal(loc=3, scale=2, shape=(20, 500)), mx.sym.random_uniform(low=-1, high=5, shape=(20, 500)),
        mx.sym.random_normal_like(data, loc=3, scale=2), mx.sym.random_uniform_like(data, low=-1, high=5),
    ])  # fmt: skip
    inputs = {"data": np.zeros((20, 500), "float32")}
    write(path, symbol, {}, inputs)
    back = mxonnx.import_model(path)[0]
    for outputs in (runtime(path, inputs), [x.asnumpy() for x in back.eval(data=mx.nd.zeros((20, 500)))]):
        for out, (mean, std) in zip(outputs, [(3, 2), (2, 6 / 12**0.5)] * 2, strict=True):
            assert out.shape == (20, 500)
            assert abs(out.mean() - mean) < 0.1 and abs(out.std() - std) < 0.1


def test_classes_are_drawn_by_their_probabilities(tmp_path):
    path = str(tmp_path / "model.onnx")
    shares = np.array([[0.1, 0.9, 0.0], [0.5, 0.0, 0.5]], "float32")
    write(path, mx.sym.sample_multinomial(mx.sym.var("data"), shape=2000), {}, {"data": shares})
    back = mxonnx.import_model(path)[0]
    for drawn in (runtime(path, {"data": shares})[0], back.eval(data=mx.nd.array(shares))[0].asnumpy()):
        assert drawn.shape == (2, 2000)
        np.testing.assert_allclose([np.bincount(row, minlength=3) / 2000 for row in drawn], shares, atol=0.05)


def test_a_wrong_result_is_detected():
    right = np.array([[1.0, 2.0]], "float32")
    for wrong in (right + 0.001, right[0], right.astype("float64")):
        with pytest.raises(AssertionError):
            close(wrong, right, "made")


def test_the_operators_that_can_be_written_are_listed():
    names = mx.onnx.get_operator_support()
    assert {"Convolution", "broadcast_add", "_plus_scalar", "split", "SliceChannel"} <= set(names)
    assert "Custom" not in names
    assert len(importers()) > 120
