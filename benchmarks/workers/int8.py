"""Milliseconds of a prediction of an image network in float32 and in int8, on two threads.

    python int8.py SYSTEM NETWORK BATCH [FILE]

flowmx and MXNet build the network of the model zoo and quantize it by the ranges of the batch. flowmx writes it to FILE
as ONNX besides, where one is named; onnxruntime reads it there and quantizes it.
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

SECONDS = 2.0


def batch_of(network: str, batch: int) -> Any:
    """The images."""
    size = 299 if "inception" in network else 224
    return np.random.default_rng(0).standard_normal((batch, 3, size, size)).astype(np.float32)


def mxnet_like(mx: Any, network: str, batch: int, file: str | None) -> dict[str, float]:
    """flowmx and MXNet run the same code."""
    data = batch_of(network, batch)
    x = mx.nd.array(data)
    mx.random.seed(0)
    net = getattr(mx.gluon.model_zoo.vision, network)()
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    real = net(x).asnumpy()
    loader = mx.gluon.data.DataLoader(
        mx.gluon.data.ArrayDataset(data, np.zeros(batch, np.float32)), batch_size=batch, num_workers=0
    )
    quantized = mx.contrib.quantization.quantize_net_v2(
        net, quantized_dtype="auto", calib_mode="naive", calib_data=loader, num_calib_examples=batch, ctx=mx.cpu()
    )
    quantized.hybridize(static_alloc=True, static_shape=True)
    given = quantized(x).asnumpy()
    if file is not None:
        symbol = net(mx.sym.var("data"))
        params = {name: param.data() for name, param in net.collect_params().items()}
        mx.contrib.onnx.export_model(symbol, params, [data.shape], np.float32, file)
    return timed(lambda: net(x).wait_to_read(), lambda: quantized(x).wait_to_read(), real, given)


def timed(real_step: Any, quantized_step: Any, real: Any, given: Any) -> dict[str, float]:
    """The figures, the two forms by turns."""
    steps = {"float32_ms": real_step, "int8_ms": quantized_step}
    turns = [{name: best_ms(step, SECONDS) for name, step in steps.items()} for _ in range(2)]
    figures = {name: min(turn[name] for turn in turns) for name in steps}
    figures["int8_of_float32"] = figures["int8_ms"] / figures["float32_ms"]
    figures["error"] = float(np.abs(given - real).max() / np.abs(real).max())
    return figures


def onnxruntime(network: str, batch: int, file: str) -> dict[str, float]:
    """The quantized model is kept beside the file."""
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
    real, given = (each.run(None, {"data": data})[0] for each in sessions)
    return timed(*[lambda each=each: each.run(None, {"data": data}) for each in sessions], real, given)


def main() -> None:
    """Print the figures of one system."""
    system, network, *rest = sys.argv[1:]
    (batch,) = sizes(rest[:1], [16])
    file = rest[1] if len(rest) > 1 else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if system == "onnxruntime":
            assert file is not None
            figures = onnxruntime(network, batch, file)
        else:
            mx = importlib.import_module(system)
            figures = mxnet_like(mx, network, batch, file if system == "flowmx" else None)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
