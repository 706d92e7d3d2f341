"""Kernels from source: compiled at their first launch by NVRTC through CuPy, and cached.

CuPy also caches the machine code on disk, by source and GPU.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx.ops.kernels.cuda.elementwise_source import PRELUDE

_log = logging.getLogger("flowmx.kernels")

OPTIONS = ("-std=c++17",)
THREADS = 256
"""Threads per block."""
_MAX_BLOCKS = 1 << 20


class Program:
    """A kernel and the layout of its arguments.

    Args:
        fields: the fields of ``Args``: C type and name.
        layout: the same fields for :mod:`struct`: q for ints and addresses, d for floats.
        body: the source without ``Args``, which defines ``kernel``.
    """

    __slots__ = ("_dtype", "_functions", "_pack", "source")

    def __init__(self, fields: Sequence[str], layout: str, body: str) -> None:
        packing = struct.Struct(layout)
        lines = "".join(f"    {field};\n" for field in fields)
        self.source = f"{PRELUDE}\nstruct Args {{\n{lines}}};\n\n{body}"
        self._pack = packing.pack
        self._dtype = np.dtype((np.void, packing.size))
        self._functions: dict[object, Any] = {}

    def launch(self, xp: object, blocks: int | tuple[int, ...], words: Sequence[float], threads: int = THREADS) -> bool:
        """Launch the kernel on the current stream; return False, without effect, if it cannot be compiled.

        Args:
            xp: cupy.
            blocks: the number of blocks.
            words: the arguments, in the order of the fields.
            threads: threads per block.
        """
        try:
            function = self._functions[xp]
        except KeyError:
            function = self._functions.setdefault(xp, self._compile(xp))
        if function is None:
            return False
        # An array of one element is passed by value; the driver copies it before returning.
        args = np.frombuffer(self._pack(*words), self._dtype)
        function(blocks if isinstance(blocks, tuple) else (blocks,), (threads,), (args,))
        return True

    def _compile(self, xp: Any) -> Any:
        try:
            return xp.RawModule(code=self.source, options=OPTIONS).get_function("kernel")
        except Exception as error:  # NVRTC and CuPy raise many types; only the text is logged: frames hold arrays
            text = f"{type(error).__name__}: {error}"
            _log.error("a kernel could not be compiled for the GPU; the fallback runs instead: %s", text)
            return None


def blocks_for(units: int) -> int:
    """Return the number of blocks for units of work, one per thread; beyond the limit, threads loop."""
    return max(1, min(-(-units // THREADS), _MAX_BLOCKS))
