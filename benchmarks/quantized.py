"""Predictions in int8 beside float32, MXNet's int8 and onnxruntime's, in turns.

``python -m benchmarks int8`` prints the table.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks import turns

NETWORKS = {"resnet50_v1": 0.4, "resnet18_v1": 0.5, "mobilenetv2_1.0": 0.6, "vgg16": 0.5, "inceptionv3": 0.5}
"""Networks of the model zoo, and the most of float32's time that int8 may take."""
NAMES = {"mobilenetv2_1.0": "mobilenet_v2_1_0", "inceptionv3": "inception_v3"}
PEERS = ["mxnet", "onnxruntime"]


def compare(network: str, batch: int, rounds: int) -> dict[str, dict[str, float]]:
    """The least figures of flowmx and of the peers that are installed, after some turns of each."""
    systems = ["flowmx", *(peer for peer in PEERS if turns.python_of(peer))]
    with tempfile.TemporaryDirectory() as folder:
        arguments = [NAMES.get(network, network), str(batch), str(Path(folder) / "network.onnx")]
        taken = [{system: turns.run("int8", system, arguments) for system in systems} for _ in range(rounds)]
    return {
        system: {name: min(turn[system][name] for turn in taken) for name in taken[0][system]} for system in systems
    }


def report(rounds: int, batches: tuple[int, ...] = (16, 1)) -> None:
    """Print the figures of all networks."""
    for network, most in NETWORKS.items():
        for batch in batches:
            peers = [(peer, 1.0) for peer in PEERS]
            bars: turns.Bars = {"int8_ms": [("float32_ms", most), *peers]}
            title = f"{network}, batch {batch}, prediction in int8 (milliseconds)"
            turns.report(title, compare(network, batch, rounds), bars)
