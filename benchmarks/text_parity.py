"""Greedy tokens of SmolLM2-135M in Q4_1, flowmx's and llama.cpp's: which are equal, and how near the logits are.

``python -m benchmarks parity`` needs the file that ``make models`` fetches, a C compiler, and llama.cpp: ``PEERS`` has
``llama.cpp/include`` with the headers ``llama.h`` and ``ggml*.h``, and ``llama.cpp/lib`` with the shared libraries.

Both engines continue 20 prompts by 64 tokens. Where two texts differ, the logits of the first different token are
compared: the texts before it are equal. The table has

- the norm of the logits' difference, divided by the norm of the second engine's logits (median and largest),
- and the margin, the difference between the second engine's two largest logits, divided by its largest logit (median).

llama.cpp rounds data to 8 bits before it multiplies them by quantized weights. A difference in the last bits of a sum,
for example by another order, moves some numbers to another step, so that further ones differ. Therefore llama.cpp also
runs with another attention and another cache, and with the same weights in float32, which need no rounding.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import flowmx as mx
from benchmarks.text_models import SMOLLM2
from benchmarks.turns import PEERS, WORKERS
from flowmx.generation.step_batch import StepBatch
from flowmx.serialization import gguf

PROMPTS = (
    "The capital of France is", "Once upon a time, there was a little fox who", "Water boils at a temperature of",
    "def fibonacci(n):", "The three primary colors are", "In 1969, two astronauts", "A healthy breakfast consists of",
    "The meaning of life is", "To make a cup of tea, first", "The largest planet in the solar system is",
    "Photosynthesis is the process by which", "Dear Sir or Madam,", "The history of the Roman Empire begins",
    "If a train travels 60 miles in an hour, then", "My favorite book is about", "The ocean is home to",
    "Good programmers write code that", "Yesterday I went to the market and",
    "The difference between a virus and a bacterium is", "Music is important because",
)  # fmt: skip
COUNT = 64
"""The number of tokens that continue each prompt."""
PAGES, PAGE_SIZE = 16, 16
"""The cache of flowmx: one text at a time."""


class Text(NamedTuple):
    """A continued prompt: its new tokens (count,), and the logits (count, vocabulary) before each."""

    tokens: NDArray[np.int32]
    logits: NDArray[np.float32]


Texts = Sequence[Text]


class Peer:
    """llama.cpp, through a small program that is compiled against its libraries."""

    def __init__(self, folder: Path, prompts: Sequence[Sequence[int]]) -> None:
        home = PEERS / "llama.cpp"
        self._program, self._folder = folder / "llama_tokens", folder
        self._prompts = "".join(f"{' '.join(map(str, tokens))}\n" for tokens in prompts)
        libraries = [f"-L{home / 'lib'}", f"-Wl,-rpath,{home / 'lib'}", "-lllama", "-lggml", "-lggml-base"]
        source = [f"-I{home / 'include'}", str(WORKERS / "llama_tokens.c"), "-o", str(self._program)]
        subprocess.run(["cc", "-O2", *source, *libraries], check=True)

    def texts(self, model: Path, chunk: int, is_fused: bool, cache_bits: int) -> Texts:
        """Return the texts for a chunk of the prompt, fused attention or not, and a cache of 16 or 32 bits."""
        path = self._folder / "logits"
        command = [str(self._program), str(model), str(COUNT), str(chunk), str(int(is_fused)), str(cache_bits)]
        with path.open("wb") as file:
            subprocess.run(command, input=self._prompts.encode(), stdout=file, check=True)
        steps = np.fromfile(path, np.int32).reshape(len(PROMPTS), COUNT, -1)
        return [Text(each[:, 0], each[:, 1:].view(np.float32)) for each in steps]


def own_texts(prompts: Sequence[Sequence[int]], **options: Any) -> Texts:
    """Return flowmx's texts; the options are those of ``from_pretrained``."""
    net = mx.gluon.model_zoo.from_pretrained(SMOLLM2, **options)
    decoder = mx.generation.PagedDecoder(net, PAGES, PAGE_SIZE)
    return [_own_text(decoder, tokens) for tokens in prompts]


def _own_text(decoder: mx.generation.PagedDecoder, prompt: Sequence[int]) -> Text:
    tokens, start, rows = list(prompt), 0, []
    for _ in range(COUNT):
        places = np.arange(start, len(tokens), dtype=np.int32)
        sequences, tables = np.zeros_like(places), np.arange(PAGES, dtype=np.int32)[None]
        last = np.array([len(places) - 1], np.int32)
        batch = StepBatch(np.array(tokens[start:], np.int32), places, places, sequences, tables, last)
        start = len(tokens)
        rows.append(decoder.step(batch).asnumpy()[0])
        tokens.append(int(rows[-1].argmax()))
    return Text(np.array(tokens[len(prompt) :], np.int32), np.stack(rows))


def float32_copy(folder: Path) -> Path:
    """Write the model with the same weights in float32; return the file."""
    file, path = gguf.load(SMOLLM2), folder / "float32.gguf"
    tensors = {name: gguf.GGUFTensor.quantize(name, each.to_numpy(), "F32") for name, each in file.tensors.items()}
    gguf.save(path, {**file.metadata, "general.file_type": 0}, tensors)
    return path


def difference(texts: Texts, others: Texts) -> str:
    """Return how many texts are equal, and how the others differ."""
    differences, margins = [], []
    for text, other in zip(texts, others, strict=True):
        places = np.flatnonzero(text.tokens != other.tokens)
        if len(places):
            ours, theirs = (each.logits[places[0]].astype(np.float64) for each in (text, other))
            size, best = np.linalg.norm(theirs), np.sort(theirs)[-2:]
            differences.append(100 * np.linalg.norm(ours - theirs) / size)
            margins.append(100 * (best[1] - best[0]) / np.abs(theirs).max())
    equal = f"{len(texts) - len(differences):2} of {len(texts)}"
    if not differences:
        return equal
    return f"{equal} {np.median(differences):10.2f} % {max(differences):7.2f} % {np.median(margins):6.2f} %"


def report() -> None:
    """Print the table."""
    missing = [path for path in (SMOLLM2, PEERS / "llama.cpp" / "lib") if not path.exists()]
    if missing:
        print(f"{missing[0]} does not exist: see benchmarks/text_parity.py")
        return
    tokenizer = mx.generation.Tokenizer.from_gguf(gguf.load(SMOLLM2).metadata)
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    with tempfile.TemporaryDirectory() as name:
        peer, copy = Peer(Path(name), prompts), float32_copy(Path(name))
        llama = peer.texts(SMOLLM2, 512, is_fused=True, cache_bits=16)
        exact = peer.texts(copy, 512, is_fused=False, cache_bits=32)
        rows = {
            "llama.cpp, cache in float32": peer.texts(SMOLLM2, 512, is_fused=False, cache_bits=32),
            "llama.cpp": llama,
            "flowmx": own_texts(prompts),
            "flowmx, data of 8 bits": own_texts(prompts, data_bits=8),
        }
    for title, others in (("llama.cpp with the same file", llama), ("llama.cpp with weights in float32", exact)):
        print(f"{'compared with ' + title:48} {'equal':>8} {'difference':>12} {'largest':>9} {'margin':>8}")
        for label, texts in rows.items():
            if texts is not others:
                print(f"{label:48} {difference(texts, others)}", flush=True)
