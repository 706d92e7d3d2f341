"""Predictions of ten networks in float32, compared with onnxruntime, OpenVINO and PyTorch, in short turns.

``python -m benchmarks prediction`` prints a table for each network and batch, and the geometric mean of flowmx's ratio
to the best peer. flowmx exports each network to ONNX, in the folder that ONNX_FILES names. NETWORKS, BATCHES and
SYSTEMS in the environment select networks, batches and peers. THREADS is the number of threads. CPU_TIME measures
processor time: use it with THREADS=1 on a machine with other work.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import tempfile
from pathlib import Path

from benchmarks import turns

NETWORKS = [
    "resnet18_v1", "resnet50_v1", "mobilenet_v2_1_0", "densenet121", "squeezenet1_0", "inception_v3", "vgg16",
    "efficientnet_b0", "encoder", "lstm",
]  # fmt: skip
PEERS = {
    "onnxruntime": ("onnxruntime", "ov"), "openvino": ("openvino", "ov"), "torch": ("torch",),
    "torch.compile": ("torch",),
}  # fmt: skip
"""The environments that may have each peer."""
LARGEST, MEAN = 1.05, 0.9
"""The largest permitted ratio to the best peer, and the largest permitted geometric mean."""
_SECONDS = 0.5


def _python_of(system: str) -> str | None:
    """Return the interpreter of a system, or None if it is not installed."""
    return next(filter(None, map(turns.python_of, PEERS.get(system, (system,)))), None)


class Server:
    """A process that predicts on request."""

    def __init__(self, system: str, network: str, batch: int, file: Path) -> None:
        self._name = f"{system} on {network}"
        interpreter = _python_of(system)
        assert interpreter is not None
        command = [interpreter, str(turns.WORKERS / "prediction.py"), system, network, str(batch), str(file)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        line = self._line()
        while not line.startswith("{"):
            line = self._line()
        self.error: float | None = json.loads(line)["error"]

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name} ended with {self._process.wait()}")
        return line

    def milliseconds(self) -> float:
        """Return the time of the fastest prediction of a turn."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{_SECONDS}\n")
        self._process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def compare(network: str, batch: int, rounds: int, folder: Path) -> dict[str, dict[str, float]]:
    """Return the least time of flowmx and of each peer over ``rounds`` turns of each, and the errors."""
    peers = os.environ.get("SYSTEMS", " ".join(PEERS)).split()
    systems = ["flowmx", *(peer for peer in peers if _python_of(peer))]
    servers: dict[str, Server] = {}
    try:
        for system in systems:  # flowmx writes the file that others read
            servers[system] = Server(system, network, batch, folder / f"{network}-{batch}.onnx")
        times: dict[str, list[float]] = {system: [] for system in systems}
        for _ in range(rounds):
            for system, server in servers.items():
                times[system].append(server.milliseconds())
    finally:
        for server in servers.values():
            server.close()
    errors = {
        system: {} if server.error is None else {"error_millionths": 1e6 * server.error}
        for system, server in servers.items()
    }
    return {system: {"predict_ms": min(times[system]), **errors[system]} for system in systems}


def report(rounds: int) -> None:
    """Print the figures of all networks."""
    ratios = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(os.environ.get("ONNX_FILES", temporary))
        for network in os.environ.get("NETWORKS", " ".join(NETWORKS)).split():
            for batch in map(int, os.environ.get("BATCHES", "1 16").split()):
                figures = compare(network, batch, 2 * rounds, folder)
                bars: turns.Bars = {"predict_ms": [(system, LARGEST) for system in figures if system != "flowmx"]}
                turns.report(f"{network}, batch {batch}, prediction in float32 (milliseconds)", figures, bars)
                others = [each["predict_ms"] for system, each in figures.items() if system in PEERS]
                if others:
                    ratios.append(figures["flowmx"]["predict_ms"] / min(others))
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"\nGeometric mean of the ratios to the best peer: {mean:.3f}, at most {MEAN}; largest {max(ratios):.2f}")
