"""Silero's voice activity detector (``make models`` fetches it): a block for sessions, and onnxruntime's results.

A call takes 512 samples at 16 kHz, 32 ms. The file's input begins with the last 64 samples of the chunk before; here
they are a second state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import flowmx as mx
from benchmarks.text_models import SILERO

__all__ = ["CHUNK", "SECONDS", "STATES", "Detector", "Runtime", "speech"]

RATE, CHUNK, CONTEXT = 16000, 512, 64
SECONDS = CHUNK / RATE
"""The duration of a chunk."""
STATES = {"context": mx.serve.State((CONTEXT,)), "state": mx.serve.State((2, 128), axis=1)}

Samples = npt.NDArray[np.float32]


class Detector(mx.gluon.HybridBlock):
    """The probability that a chunk has a voice, (batch, 1), and the next states."""

    def __init__(self) -> None:
        super().__init__()
        shapes = {"input": ("batch", CONTEXT + CHUNK), "state": (2, "batch", 128)}
        self.net = mx.contrib.onnx.import_to_gluon(SILERO, input_shapes=shapes, constants={"sr": RATE})

    def hybrid_forward(self, F: Any, x: Any, context: Any, state: Any) -> tuple[Any, ...]:
        samples = F.concat(context, x, dim=1)
        y, after = self.net(samples, state)
        return y, F.slice_axis(samples, axis=1, begin=-CONTEXT, end=None), after


class Runtime:
    """The same detector, computed by onnxruntime.

    Args:
        threads: the number of threads of a run.
        rows: the number of sessions that share each run.
    """

    def __init__(self, threads: int = 1, rows: int = 1) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 4
        self._session = onnxruntime.InferenceSession(str(SILERO), options)
        self._context = np.zeros((rows, CONTEXT), np.float32)
        self._state = np.zeros((2, rows, 128), np.float32)
        self._rate = np.array(RATE, np.int64)

    def run(self, chunks: Samples) -> Samples:
        """Return the probabilities of the next chunk of each session, (rows, 1)."""
        samples = np.concatenate([self._context, chunks], 1)
        feeds = {"input": samples, "state": self._state, "sr": self._rate}
        y, self._state = self._session.run(None, feeds)
        self._context = samples[:, -CONTEXT:]
        return np.asarray(y)


def speech(chunks: int, seed: int = 0) -> Samples:
    """Return a sound like a voice, (chunks, samples): a glottal tone with formants, with pauses, and noise."""
    rng = np.random.default_rng(seed)
    times = np.arange(chunks * CHUNK) / RATE
    pitch = rng.uniform(90, 220) * (1 + 0.1 * np.sin(2 * np.pi * rng.uniform(2, 5) * times))
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    voice = np.sum([np.sin(k * phase) / (1 + abs(k * 150 - 700) / 400) for k in range(1, 20)], 0)
    loud = np.clip(np.sin(2 * np.pi * rng.uniform(0.5, 1.5) * times + rng.uniform(0, 6)), 0, 1)
    sound: Samples = (0.1 * loud * voice + 0.005 * rng.standard_normal(len(times))).astype(np.float32)
    return sound.reshape(chunks, CHUNK)
