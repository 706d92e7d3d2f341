"""Kernels from source: compiled at their first launch, by NVRTC through CuPy, and kept.

CuPy keeps the machine code on disk too, in its own cache, by the source and the GPU.
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
"""Threads of a block."""
_MOST_BLOCKS = 1 << 20


class Program:
    """A kernel and the layout of its arguments.

    Args:
        fields: a line of ``Args`` each: C's type and the name.
        layout: the same for :mod:`struct`: q for ints and addresses, d for floats.
        body: the source but for ``Args``: it defines ``kernel``.
    """

    __slots__ = ("_dtype", "_functions", "_pack", "source")

    def __init__(self, fields: Sequence[str], layout: str, body: str) -> None:
        packing = struct.Struct(layout)
        lines = "".join(f"    {field};\n" for field in fields)
        self.source = f"{PRELUDE}\nstruct Args {{\n{lines}}};\n\n{body}"
        self._pack = packing.pack
        self._dtype = np.dtype((np.void, packing.size))
        self._functions: dict[Any, Any] = {}

    def launch(self, xp: Any, blocks: int | tuple[int, ...], words: Sequence[float], threads: int = THREADS) -> bool:
        """Launch it on the current stream; False, and nothing is done, where it cannot be compiled.

        Args:
            xp: cupy.
            blocks: how many.
            words: the arguments, in the order of the fields.
            threads: of each block.
        """
        try:
            function = self._functions[xp]
        except KeyError:
            function = self._functions.setdefault(xp, self._compiled(xp))
        if function is None:
            return False
        # One array of one element is passed by value; the driver copies it before it returns.
        args = np.frombuffer(self._pack(*words), self._dtype)
        function(blocks if isinstance(blocks, tuple) else (blocks,), (threads,), (args,))
        return True

    def _compiled(self, xp: Any) -> Any:
        try:
            return xp.RawModule(code=self.source, options=OPTIONS).get_function("kernel")
        except Exception as error:  # its frames hold arrays, so that it is logged and not kept
            text = f"{type(error).__name__}: {error}"
            _log.error("a kernel could not be compiled for the GPU; the plain forward runs instead: %s", text)
            return None


def blocks_for(units: int) -> int:
    """The number of blocks for so many units of work, one a thread; beyond the limit, threads loop."""
    return max(1, min(-(-units // THREADS), _MOST_BLOCKS))
