"""A server of predictions of an image network in float32 and in int8, on two threads.

    python int8.py SYSTEM NETWORK BATCH [FILE]

It prints a line of JSON when it is ready, with the largest error of int8. For each line ``float32`` or ``int8`` of
its input it predicts for a short time, and prints the milliseconds of the fastest prediction: systems take short turns.

flowmx and MXNet build the network of the model zoo and quantize it by the ranges of the batch. flowmx also writes it
to FILE as ONNX; onnxruntime reads that file and quantizes it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")

import numpy as np
from timing import best_ms, sizes


def batch_of(network: str, batch: int) -> Any:
    """Return a batch of images."""
    size = 299 if "inception" in network else 224
    return np.random.default_rng(0).standard_normal((batch, 3, size, size)).astype(np.float32)


def mxnet_like(mx: Any, network: str, batch: int, file: str | None) -> None:
    """Measure flowmx or MXNet, by the same code."""
    data = batch_of(network, batch)
    x = mx.nd.array(data)
    mx.random.seed(0)
    net = getattr(mx.gluon.model_zoo.vision, network)()
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    exact = net(x).asnumpy()
    loader = mx.gluon.data.DataLoader(
        mx.gluon.data.ArrayDataset(data, np.zeros(batch, np.float32)), batch_size=batch, num_workers=0
    )
    quantized = mx.contrib.quantization.quantize_net_v2(
        net, quantized_dtype="auto", calib_mode="naive", calib_data=loader, num_calib_examples=batch, ctx=mx.cpu()
    )
    quantized.hybridize(static_alloc=True, static_shape=True)
    approximate = quantized(x).asnumpy()
    if file is not None:
        symbol = net(mx.sym.var("data"))
        params = {name: param.data() for name, param in net.collect_params().items()}
        mx.contrib.onnx.export_model(symbol, params, [data.shape], np.float32, file)
    served(lambda: net(x).wait_to_read(), lambda: quantized(x).wait_to_read(), exact, approximate)


def served(real_step: Any, quantized_step: Any, exact: Any, approximate: Any) -> None:
    """Print the error of int8, then answer each line of the input."""
    steps = {"float32": real_step, "int8": quantized_step}
    for step in steps.values():
        for _ in range(3):
            step()
    print(json.dumps({"error": float(np.abs(approximate - exact).max() / np.abs(exact).max())}), flush=True)
    for line in sys.stdin:
        print(best_ms(steps[line.strip()], 0.3), flush=True)


def onnxruntime(network: str, batch: int, file: str) -> None:
    """Quantize the file once, into another file of its folder, and serve both."""
    import onnxruntime as ort
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    data = batch_of(network, batch)

    class Batch(CalibrationDataReader):  # type: ignore[misc]
        """The one batch."""

        def __init__(self) -> None:
            self.left = [{"data": data}]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    prepared, quantized = (str(Path(file).with_suffix(f".{label}.onnx")) for label in ("prepared", "int8"))
    if not Path(quantized).exists():
        quant_pre_process(file, prepared)
        quantize_static(
            prepared, quantized, Batch(), QuantFormat.QDQ, per_channel=True, activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )  # fmt: skip
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    sessions = [ort.InferenceSession(each, options, ["CPUExecutionProvider"]) for each in (file, quantized)]
    exact, approximate = (each.run(None, {"data": data})[0] for each in sessions)
    served(*[lambda each=each: each.run(None, {"data": data}) for each in sessions], exact, approximate)


def main() -> None:
    """Serve one system."""
    system, network, *rest = sys.argv[1:]
    (batch,) = sizes(rest[:1], [16])
    file = rest[1] if len(rest) > 1 else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if system == "onnxruntime":
            assert file is not None
            onnxruntime(network, batch, file)
        else:
            mx = importlib.import_module(system)
            mxnet_like(mx, network, batch, file if system == "flowmx" else None)


if __name__ == "__main__":
    main()
