"""The description of a simulated device: memory, arithmetic, bandwidths, latencies.

The presets' figures are from the manufacturers' data sheets (dense rates, no sparsity). ``efficiency``, the share of
them that kernels reach, is an assumption, the same for all devices, and not a measurement.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

_GiB = 1 << 30
_DEFAULT_DTYPE = "float32"


@dataclass(frozen=True, kw_only=True)
class Description:
    """The description of a kind of device.

    Attributes:
        name: its name.
        memory: bytes.
        flops: floating-point operations a second by dtype; other dtypes count as float32.
        bandwidth: the bandwidth of its memory in bytes per second.
        host_bandwidth, host_latency: of a copy from or to the host, in bytes per second and in seconds.
        peer_bandwidth, peer_latency: the same between two such devices.
        kernel_seconds: the shortest time of a kernel.
        launch_seconds: the host's time for a launch.
        efficiency: the share of the rates that kernels reach.
    """

    name: str
    memory: int
    flops: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({_DEFAULT_DTYPE: 1e12}))
    bandwidth: float = 1e11
    host_bandwidth: float = 1.2e10
    host_latency: float = 1e-5
    peer_bandwidth: float = 1e10
    peer_latency: float = 1e-5
    kernel_seconds: float = 3e-6
    launch_seconds: float = 5e-6
    efficiency: float = 0.6

    def kernel(self, flops: float, nbytes: float, dtype: str) -> tuple[float, str]:
        """Return the seconds of a kernel by the roofline model, and its limit.

        The limit is ``arithmetic``, ``bandwidth``, or for small kernels ``latency``.
        """
        rate = self.flops.get(dtype, self.flops[_DEFAULT_DTYPE])
        return max(
            (self.kernel_seconds, "latency"),
            (flops / (rate * self.efficiency), "arithmetic"),
            (nbytes / (self.bandwidth * self.efficiency), "bandwidth"),
        )

    def copy(self, nbytes: float, between: str) -> float:
        """Return the seconds of a copy between the device and the ``host``, or a ``peer``."""
        if between == "peer":
            return self.peer_latency + nbytes / self.peer_bandwidth
        return self.host_latency + nbytes / self.host_bandwidth


PRESETS: Mapping[str, Description] = MappingProxyType(
    {
        "h100": Description(
            name="H100", memory=80 * _GiB, bandwidth=3.35e12, host_bandwidth=5.5e10, peer_bandwidth=4.5e11,
            # float32 products use TF32, like PyTorch's convolutions.
            flops={"float32": 4.94e14, "float16": 9.89e14, "bfloat16": 9.89e14, "float64": 3.4e13},
        ),
        "a10": Description(
            name="A10", memory=24 * _GiB, bandwidth=6e11, host_bandwidth=2.5e10, peer_bandwidth=2.5e10,
            flops={"float32": 6.25e13, "float16": 1.25e14, "bfloat16": 1.25e14, "float64": 9.8e11},
        ),
        "gtx980": Description(
            name="GTX 980", memory=4 * _GiB, bandwidth=2.24e11, host_bandwidth=1.2e10, peer_bandwidth=1e10,
            flops={"float32": 4.98e12, "float64": 1.56e11},
        ),
        "gk104": Description(
            name="GK104", memory=4 * _GiB, bandwidth=1.6e11, host_bandwidth=1.0e10, peer_bandwidth=6e9,
            flops={"float32": 2.46e12, "float64": 1.02e11},
        ),
    }
)  # fmt: skip


def preset(name: str) -> Description:
    """Return the preset of a name.

    Raises:
        ValueError: the name is unknown.
    """
    description = PRESETS.get(name.lower())
    if description is None:
        raise ValueError(f"the device is {name!r}, expected one of {', '.join(PRESETS)}")
    return description


def fleet(text: str) -> tuple[Description, int]:
    """Parse a text such as ``h100x8`` or ``a10`` into a preset and a count (default 1).

    Raises:
        ValueError: the preset is unknown, or the number is 0.
    """
    name, _, number = text.strip().lower().rpartition("x")
    if not number.isdecimal() or text.strip().lower() in PRESETS:  # gtx980 is a name
        return preset(text.strip()), 1
    if int(number) < 1:
        raise ValueError(f"the device is {text!r}, expected at least one, such as h100x8")
    return preset(name), int(number)


_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def memory_of(text: str) -> int:
    """Parse bytes from a text such as ``40GB``, ``512MiB`` or ``1000000``; all units are powers of 1024.

    Raises:
        ValueError: the text is invalid.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", text.lower())
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"the memory is {text!r}, expected bytes such as 40GB or 512MiB")
    return int(float(match[1]) * 2 ** _UNITS[match[2]])
