"""Predictions in int8, compared with float32, MXNet's int8 and onnxruntime's, in short turns.

``python -m benchmarks int8`` prints the table: the least and the median of the turns, and the bars on the medians.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
from pathlib import Path

from benchmarks import turns

NETWORKS = {
    "resnet50_v1": 0.4, "resnet18_v1": 0.5, "mobilenet_v2_1_0": 0.6, "vgg16": 0.5, "inception_v3": 0.5,
}  # fmt: skip
"""Networks of the model zoo, and the largest permitted ratio of int8's time to float32's."""
PEERS = ["mxnet", "onnxruntime"]


class Server:
    """A process that predicts on request."""

    def __init__(self, system: str, network: str, batch: int, file: str) -> None:
        self._name = f"{system} on {network}"
        interpreter = turns.python_of(system)
        assert interpreter is not None
        command = [interpreter, str(turns.WORKERS / "int8.py"), system, network, str(batch), file]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        line = self._line()
        while not line.startswith("{"):
            line = self._line()
        self.error: float = json.loads(line)["error"]

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name} ended with {self._process.wait()}")
        return line

    def milliseconds(self, kind: str) -> float:
        """Return the time of the fastest prediction of a turn in ``float32`` or ``int8``."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{kind}\n")
        self._process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def compare(network: str, batch: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the figures of flowmx and of the installed peers, over ``rounds`` turns of each."""
    systems = ["flowmx", *(peer for peer in PEERS if turns.python_of(peer))]
    with tempfile.TemporaryDirectory() as folder:
        servers = {}
        for system in systems:  # flowmx writes the file that onnxruntime reads
            servers[system] = Server(system, network, batch, str(Path(folder) / "network.onnx"))
        calls: dict[str, dict[str, list[float]]] = {name: {"float32": [], "int8": []} for name in systems}
        for _ in range(rounds):
            for kind in ("float32", "int8"):
                for system, server in servers.items():
                    calls[system][kind].append(server.milliseconds(kind))
        for server in servers.values():
            server.close()
    figures: dict[str, dict[str, float]] = {}
    for system, kinds in calls.items():
        figures[system] = {f"{kind}_ms": statistics.median(times) for kind, times in kinds.items()}
        figures[system] |= {f"{kind}_least_ms": min(times) for kind, times in kinds.items()}
        figures[system]["error"] = servers[system].error
    return figures


def report(rounds: int, batches: tuple[int, ...] = (16, 1)) -> None:
    """Print the figures of all networks."""
    for network, limit in NETWORKS.items():
        for batch in batches:
            bars: turns.Bars = {"int8_ms": [("float32_ms", limit), *((peer, 1.0) for peer in PEERS)]}
            figures = compare(network, batch, rounds * (1 if batch > 1 else 4))
            turns.report(f"{network}, batch {batch}, prediction in int8 (milliseconds)", figures, bars)
