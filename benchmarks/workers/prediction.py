"""A server of predictions of an image network in float32.

    python prediction.py SYSTEM NETWORK BATCH FILE

It prints a line of JSON when it is ready, with the largest error relative to flowmx's prediction. For each line of its
input it predicts for a short time, and prints the milliseconds of the fastest prediction: systems take short turns.

flowmx builds the network, writes it to FILE as ONNX unless the file exists, and its prediction next to it; onnxruntime
and OpenVINO read both. PyTorch builds those networks that ``networks.py`` has, with other parameters. THREADS is the
number of threads (default: 2).
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

import networks  # a module of this folder: the peers cannot import the package
import numpy as np
from timing import best_ms

THREADS = int(os.environ["THREADS"])
IN_TORCH = {
    "resnet18_v1": "resnet_18", "resnet50_v1": "resnet_50", "vgg16": "vgg_16", "inception_v3": "inception_v3",
    "mobilenet_v2_1_0": "mobilenet_v2",
}  # fmt: skip
EFFICIENTNET = [
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
]  # fmt: skip
"""The stages of EfficientNet-B0: expansion, channels, blocks, stride, kernel."""


def size_of(network: str) -> int:
    """Return the height of the square images that a network reads, in pixels."""
    return 299 if "inception" in network else 224


def efficientnet(mx: Any) -> Any:
    """Return EfficientNet-B0 as a symbol."""
    F = mx.sym

    def conv(x: Any, filters: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> Any:
        pad = kernel // 2
        x = F.Convolution(
            x, kernel=(kernel, kernel), stride=(stride, stride), pad=(pad, pad), num_filter=filters, num_group=groups,
            no_bias=True,
        )  # fmt: skip
        return F.BatchNorm(x, fix_gamma=False, eps=1e-3)

    def swish(x: Any) -> Any:
        return x * F.sigmoid(x)

    x, inside = swish(conv(F.Variable("data"), 32, 3, 2)), 32
    for times, filters, count, stride, kernel in EFFICIENTNET:
        for number in range(count):
            wide = times * inside
            hidden = swish(conv(x, wide)) if times > 1 else x
            hidden = swish(conv(hidden, wide, kernel, 1 if number else stride, wide))
            mean = F.Pooling(hidden, global_pool=True, pool_type="avg", kernel=(1, 1))
            gate = swish(F.Convolution(mean, kernel=(1, 1), num_filter=max(1, inside // 4)))
            gate = F.sigmoid(F.Convolution(gate, kernel=(1, 1), num_filter=wide))
            hidden = conv(F.broadcast_mul(hidden, gate), filters)
            x = x + hidden if number else hidden
            inside = filters
    x = F.Pooling(swish(conv(x, 1280)), global_pool=True, pool_type="avg", kernel=(1, 1))
    return F.FullyConnected(x, num_hidden=1000)


def flowmx(network: str, data: Any, file: Path) -> Callable[[], Any]:
    """Return flowmx's prediction, and write the network and a prediction to files."""
    import flowmx as mx

    mx.random.seed(0)
    if network == "efficientnet_b0":
        net = mx.gluon.SymbolBlock(efficientnet(mx), mx.sym.Variable("data"))
    else:
        net = getattr(mx.gluon.model_zoo.vision, network)()
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


def pytorch(network: str, data: Any) -> Callable[[], Any]:
    """Return PyTorch's prediction with the channels last, compiled where that works."""
    import torch

    torch.set_num_threads(THREADS)
    layers = {**networks.NETWORKS, **networks.LATER}[IN_TORCH[network]]
    net = networks.module(torch, layers, size_of(network)).eval().to(memory_format=torch.channels_last)
    x = torch.from_numpy(data).to(memory_format=torch.channels_last)
    model = torch.compile(net) if os.environ.get("COMPILE") else net

    def predict() -> Any:
        with torch.inference_mode():
            return model(x).numpy()

    return predict


def main() -> None:
    """Serve one system."""
    system, network, batch, name = sys.argv[1:]
    size, file = size_of(network), Path(name)
    data = np.random.default_rng(0).standard_normal((int(batch), 3, size, size)).astype(np.float32)
    if system == "onnxruntime":
        predict = onnxruntime(file, data)
    elif system == "openvino":
        predict = openvino(file, data)
    elif system == "torch":
        predict = pytorch(network, data)
    else:
        predict = flowmx(network, data, file)
    error = None
    if system != "torch":
        expected = np.load(file.with_suffix(".npy"))
        error = float(np.abs(predict() - expected).max() / np.abs(expected).max())
    print(json.dumps({"error": error}), flush=True)
    for line in sys.stdin:
        print(best_ms(predict, float(line), 1), flush=True)


if __name__ == "__main__":
    main()
