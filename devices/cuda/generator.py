"""Random numbers of a GPU.

Uniform, normal and exponential numbers, of which networks draw millions, are drawn on the device by CuPy's Philox
generator: its state lies in the device's memory and goes on there, so that a captured graph draws new ones at each
replay. A seed repeats them, but they are others than a CPU's, as they were in MXNet. What is drawn rarely, or has no
counterpart in CuPy, comes from NumPy's generator with the same seed, and is copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx.devices.generator import Generator


class DeviceBits:
    """The part of NumPy's ``Generator`` that operators use; results lie on the device, but for scalars.

    Args:
        cp: CuPy.
        host: NumPy's generator.
    """

    def __init__(self, cp: Any, host: np.random.Generator) -> None:
        self._cp = cp
        self._host = host
        self._seed = int(host.bit_generator.seed_seq.generate_state(1, np.uint64)[0] >> np.uint64(1))
        self._drawing: Any = None

    @property
    def _device(self) -> Any:
        """CuPy's generator, made at the first draw, when the device is the current one."""
        if self._drawing is None:
            self._drawing = self._cp.random.Generator(self._cp.random.Philox4x3210(self._seed))
        return self._drawing

    def random(self, size: Any = None, dtype: Any = np.float64) -> Any:
        """Uniform numbers from 0 up to 1."""
        return self._host.random() if size is None else self._device.random(size, dtype)

    def standard_normal(self, size: Any = None, dtype: Any = np.float64) -> Any:
        """Normal numbers."""
        return self._device.standard_normal(() if size is None else size, dtype)

    def standard_exponential(self, size: Any = None, dtype: Any = np.float64) -> Any:
        """Exponential numbers of rate 1."""
        return self._device.standard_exponential(() if size is None else size, dtype)

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Any = None) -> Any:
        """Uniform numbers from low up to high; without a size, one number of the host's."""
        return self._host.uniform(low, high) if size is None else self._device.random(size) * (high - low) + low

    def permutation(self, count: int) -> Any:
        """The numbers up to count, in any order; on the host."""
        return self._host.permutation(count)

    def __getattr__(self, name: str) -> Any:
        """A method of any other distribution, drawn on the host."""
        draw = getattr(self._host, name)

        def drawn(*parameters: Any, **named: Any) -> Any:
            made = draw(*map(self._to_host, parameters), **named)
            return self._cp.asarray(made) if isinstance(made, np.ndarray) else made

        return drawn

    def _to_host(self, value: Any) -> Any:
        return value.get() if isinstance(value, self._cp.ndarray) else value


class CudaGenerator(Generator):
    """The random generator of a GPU."""

    goes_back = False

    def __init__(self, name: str, cp: Any) -> None:
        self._cp = cp
        super().__init__(name)

    def reseed(self, seed: int | None, salted: bool = True) -> None:
        super().reseed(seed, salted)
        self.bits = DeviceBits(self._cp, self.bits)  # type: ignore[assignment]
