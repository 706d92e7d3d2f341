"""Random numbers on a GPU.

Networks draw millions of uniform, normal and exponential numbers. These are drawn on the device by CuPy's Philox
generator. Its state is in device memory and advances there, so a captured graph draws new numbers at each replay. A
seed reproduces them, but they differ from those of a CPU, as in MXNet. Other distributions are rare or have no
counterpart in CuPy; they are drawn by NumPy's generator with the same seed, and copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx.devices.cuda.capture import CaptureError
from flowmx.devices.cuda.memory import capture_state
from flowmx.devices.generator import Generator


class DeviceBits:
    """The methods of NumPy's ``Generator`` that operators use; results are on the device, except scalars.

    Args:
        cp: CuPy.
        host: NumPy's generator.
    """

    def __init__(self, cp: Any, host: np.random.Generator) -> None:
        self._cp = cp
        self._host_bits = host
        self._seed = int(host.bit_generator.seed_seq.generate_state(1, np.uint64)[0] >> np.uint64(1))
        self._device_generator: Any = None

    @property
    def _host(self) -> np.random.Generator:
        """NumPy's generator.

        Raises:
            CaptureError: a graph is being captured: each of its replays would use the same number.
        """
        if capture_state.memory is not None:
            raise CaptureError("a number that is drawn on the host cannot be part of a CUDA graph", None)
        return self._host_bits

    @property
    def _device(self) -> Any:
        """CuPy's generator, created at the first draw, when the device is the current one."""
        if self._device_generator is None:
            self._device_generator = self._cp.random.Generator(self._cp.random.Philox4x3210(self._seed))
        return self._device_generator

    def random(self, size: object = None, dtype: object = np.float64) -> Any:
        """Draw uniform numbers from [0, 1)."""
        return self._host.random() if size is None else self._device.random(size, dtype)

    def standard_normal(self, size: object = None, dtype: object = np.float64) -> Any:
        """Draw standard normal numbers."""
        return self._device.standard_normal(() if size is None else size, dtype)

    def standard_exponential(self, size: object = None, dtype: object = np.float64) -> Any:
        """Draw exponential numbers with rate 1."""
        return self._device.standard_exponential(() if size is None else size, dtype)

    def uniform(self, low: float = 0.0, high: float = 1.0, size: object = None) -> Any:
        """Draw uniform numbers from [low, high); without a size, one number on the host."""
        return self._host.uniform(low, high) if size is None else self._device.random(size) * (high - low) + low

    def permutation(self, count: int) -> Any:
        """Return a random permutation of range(count), on the host."""
        return self._host.permutation(count)

    def __getattr__(self, name: str) -> Any:
        """Return the method of any other distribution, which draws on the host."""
        draw = getattr(self._host, name)

        def draw_on_host(*parameters: Any, **options: Any) -> Any:
            values = draw(*map(self._to_host, parameters), **options)
            return self._cp.asarray(values) if isinstance(values, np.ndarray) else values

        return draw_on_host

    def _to_host(self, value: Any) -> Any:
        return value.get() if isinstance(value, self._cp.ndarray) else value


class CudaGenerator(Generator):
    """The random generator of a GPU."""

    can_be_restored = False

    def __init__(self, name: str, cp: Any) -> None:
        self._cp = cp
        super().__init__(name)

    def reseed(self, seed: int | None, salted: bool = True) -> None:
        super().reseed(seed, salted)
        self.bits = DeviceBits(self._cp, self.bits)  # type: ignore[assignment]
