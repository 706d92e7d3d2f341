"""A server of predictions of a network in float32.

    python prediction.py SYSTEM NETWORK BATCH FILE

It prints a line of JSON when it is ready, with the largest error relative to flowmx's prediction. For each line of its
input it predicts for a short time, and prints the milliseconds of the fastest prediction: systems take short turns.

flowmx builds the network, writes it to FILE as ONNX unless the file exists, and its prediction next to it; onnxruntime
and OpenVINO read both. PyTorch (torch, torch.compile) builds the networks with other parameters. THREADS is the number
of threads (default: 2).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("THREADS", "2")
os.environ["OMP_NUM_THREADS"] = os.environ["FLOWMX_CPU_KERNEL_NTHREADS"] = os.environ["THREADS"]

import numpy as np
import prediction_networks as networks  # modules of this folder: the peers cannot import the package
from timing import best_ms

THREADS = int(os.environ["THREADS"])


def flowmx(network: str, data: Any, file: Path) -> Callable[[], Any]:
    """Return flowmx's prediction, and write the network and a prediction to files."""
    import flowmx as mx

    mx.random.seed(0)
    net = networks.build(mx, network, data.shape[0])
    weights = mx.init.MSRAPrelu() if "vgg" in network else mx.init.Xavier()
    net.initialize(mx.init.Mixed([".*weight", ".*(gamma|var)", ".*"], [weights, mx.init.One(), mx.init.Zero()]))
    net.hybridize(static_alloc=True, static_shape=True)
    x = mx.nd.array(data)
    result = net(x).asnumpy()
    if not file.exists():
        params = {name: param.data() for name, param in net.collect_params().items()}
        part = file.with_suffix(".part")
        mx.contrib.onnx.export_model(net(mx.sym.var("data")), params, [data.shape], np.float32, str(part))
        part.rename(file)
    np.save(file.with_suffix(".npy"), result)
    return lambda: net(x).asnumpy()


def onnxruntime(file: Path, data: Any) -> Callable[[], Any]:
    """Return onnxruntime's prediction."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = ort.InferenceSession(str(file), options, ["CPUExecutionProvider"])
    return lambda: session.run(None, {"data": data})[0]


def openvino(file: Path, data: Any) -> Callable[[], Any]:
    """Return OpenVINO's prediction, in float32."""
    import openvino as ov

    config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": THREADS}
    request = ov.Core().compile_model(str(file), "CPU", config).create_infer_request()
    return lambda: request.infer([data])[0]


def pytorch(network: str, data: Any, compiles: bool) -> Callable[[], Any]:
    """Return PyTorch's prediction, with the channels of images last."""
    import prediction_peers
    import torch

    torch.set_num_threads(THREADS)
    net, x = prediction_peers.build(torch, network).eval(), torch.from_numpy(data)
    if data.ndim == 4:
        net, x = net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    model = torch.compile(net) if compiles else net

    def predict() -> Any:
        with torch.inference_mode():
            return model(x).numpy()

    return predict


def main() -> None:
    """Serve one system."""
    system, network, batch, name = sys.argv[1:]
    file = Path(name)
    data = np.random.default_rng(0).standard_normal(networks.data_shape(network, int(batch))).astype(np.float32)
    if system == "onnxruntime":
        predict = onnxruntime(file, data)
    elif system == "openvino":
        predict = openvino(file, data)
    elif system.startswith("torch"):
        predict = pytorch(network, data, system == "torch.compile")
    else:
        predict = flowmx(network, data, file)
    error = None
    if not system.startswith("torch"):
        expected = np.load(file.with_suffix(".npy"))
        error = float(np.abs(predict() - expected).max() / np.abs(expected).max())
    print(json.dumps({"error": error}), flush=True)
    for line in sys.stdin:
        print(best_ms(predict, float(line), 1), flush=True)


if __name__ == "__main__":
    main()
