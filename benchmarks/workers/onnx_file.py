"""Predictions of one ONNX file on two threads: ``python onnx_file.py SYSTEM NAME RESULTS``.

It writes the outputs to the file RESULTS, and prints the milliseconds of the fastest call and of the first one.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from timing import best_ms

from benchmarks.onnx_models import Array, Inputs, by_name

Call = Callable[[], list[Array]]


def flowmx(path: str, inputs: Inputs) -> Call:
    """Return a call of a Gluon block."""
    import flowmx as mx

    names = [name for name, _ in mx.onnx.get_model_metadata(path)["input_tensor_data"]]
    net = mx.contrib.onnx.import_to_gluon(path, mx.cpu())
    net.hybridize(static_alloc=True, static_shape=True)
    arrays = [mx.nd.array(inputs[name], dtype=inputs[name].dtype) for name in names]

    def call() -> list[Array]:
        outputs = net(*arrays)
        return [output.asnumpy() for output in (outputs if isinstance(outputs, list) else [outputs])]

    return call


def onnxruntime(path: str, inputs: Inputs) -> Call:
    """Return a call of a session."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 4
    session: Any = ort.InferenceSession(path, options, ["CPUExecutionProvider"])
    return lambda: session.run(None, inputs)  # type: ignore[no-any-return]


def openvino(path: str, inputs: Inputs) -> Call:
    """Return a call of a request; its outputs are views of its memory, which a session would copy."""
    import openvino as ov

    settings = {"INFERENCE_NUM_THREADS": 2, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request: Any = ov.compile_model(path, "CPU", settings).create_infer_request()
    return lambda: list(request.infer(inputs, share_inputs=True).values())


def main() -> None:
    """Measure one system."""
    system, name, results = sys.argv[1:]
    model = by_name()[name]
    inputs = model.random_inputs(model.sizes[0])
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call = {"flowmx": flowmx, "onnxruntime": onnxruntime, "openvino": openvino}[system](str(model.path), inputs)
        outputs = call()
    first = time.perf_counter() - start
    np.savez(results, *outputs)
    for _ in range(3):
        call()
    print(json.dumps({"call_ms": best_ms(call, 1.0), "first_ms": first * 1000}))


if __name__ == "__main__":
    main()
