"""A symbol written as ONNX, run by onnxruntime, read back, and compared with flowmx's own results."""

from __future__ import annotations

import numpy as np
import onnxruntime

import flowmx as mx
from flowmx.contrib import onnx as mxonnx

TOLERANCE = 1e-4


def close(actual, expected, what, steps=0):
    """Equal within 1e-4 (float16: 4e-3), of the size of the numbers, and some steps; shapes and dtypes too."""
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    assert actual.dtype == expected.dtype, f"{what}: dtype {actual.dtype}, expected {expected.dtype}"
    scale = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)))
    near = 4e-3 if expected.dtype == np.float16 else TOLERANCE
    np.testing.assert_allclose(actual, expected, rtol=near, atol=near * scale + steps, err_msg=what)


def predict(symbol, params, inputs):
    """Compute the outputs with flowmx; labels that output layers read in training alone are zeros."""
    bindings = {name: mx.nd.array(value, dtype=value.dtype) for name, value in inputs.items()}
    auxiliary = {name: params[name] for name in symbol.list_auxiliary_states()}
    names = symbol.list_arguments()
    left = [name for name in names if name not in bindings and name not in params]
    if left:
        shapes = dict(zip(names, symbol.infer_shape(**{k: v.shape for k, v in inputs.items()})[0], strict=True))
        bindings |= {name: mx.nd.zeros(shapes[name]) for name in left}
    values = {name: bindings[name] if name in bindings else params[name] for name in names}
    return [each.asnumpy() for each in symbol.bind(mx.cpu(), values, grad_req="null", aux_states=auxiliary).forward()]


def runtime(path, inputs):
    """Compute the outputs with onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    wanted = {each.name for each in session.get_inputs()}
    return session.run(None, {name: value for name, value in inputs.items() if name in wanted})


def write(path, symbol, params, inputs, **options):
    """Export, for inputs as these."""
    order = [name for name in symbol.list_inputs() if name in inputs]
    shapes, types = ([getattr(inputs[name], part) for name in order] for part in ("shape", "dtype"))
    return mxonnx.export_model(symbol, params, shapes, types, path, **options)


def check_file(path, expected, inputs, back=True, steps=0):
    """Check the outputs of a file in onnxruntime, and in flowmx after reading it back."""
    for index, (actual, wanted) in enumerate(zip(runtime(path, inputs), expected, strict=True)):
        close(actual, wanted, f"onnxruntime's output {index}", steps)
    if not back:
        return None
    symbol, arguments, auxiliary = mxonnx.import_model(path)
    for index, (actual, wanted) in enumerate(
        zip(predict(symbol, {**arguments, **auxiliary}, inputs), expected, strict=True)
    ):
        close(actual, wanted, f"output {index} of what was read back", steps)
    return symbol, arguments, auxiliary


def check(tmp_path, symbol, params, inputs, back=True, steps=0, **options):
    """Write a symbol, and compare all three."""
    path = str(tmp_path / "model.onnx")
    write(path, symbol, params, inputs, **options)
    return check_file(path, predict(symbol, params, inputs), inputs, back, steps)
