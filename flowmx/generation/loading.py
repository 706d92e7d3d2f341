"""Generators from files: a model, its tokenizer and its chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowmx.comm.metrics import Metrics
from flowmx.generation.chat_template import ChatTemplate
from flowmx.generation.generator import Generator
from flowmx.generation.paged_decoder import PagedDecoder
from flowmx.generation.pages import pages_within
from flowmx.generation.tokenizer import Tokenizer
from flowmx.gluon.model_zoo import from_pretrained
from flowmx.ops.registry.dtypes import DTypeLike
from flowmx.serialization import gguf

__all__ = ["is_text_model", "load"]

_MAX_BYTES = 1 << 28
"""Default size of the cache in bytes."""
_PAGE = 16
"""The number of positions of a page."""
_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Ends of the names of Hugging Face's classes that generate text."""


def is_text_model(path: str | Path) -> bool:
    """Return whether a path is a GGUF file, or a folder of Hugging Face's with a model that generates text.

    A folder without a ``tokenizer.json`` is not: its model takes and returns numbers.
    """
    path = Path(path)
    if path.suffix == ".gguf":
        return True
    if not (path / "tokenizer.json").exists():
        return False
    try:
        config = json.loads((path / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    names = config.get("architectures") if isinstance(config, dict) else None
    return isinstance(names, list) and any(isinstance(name, str) and name.endswith(_CAUSAL) for name in names)


def load(
    path: str | Path, name: str | None = None, max_bytes: int = _MAX_BYTES, max_length: int | None = None,
    dtype: DTypeLike = "float32", data_bits: int | None = None, template: str | None = None,
    metrics: Metrics | None = None, adapters: Mapping[str, str | Path] = {}, **options: Any,
) -> Generator:  # fmt: skip
    """Load a generator from a GGUF file, or from a folder of Hugging Face's Transformers.

    Args:
        path: the file or folder.
        name: the name of the model in requests and metrics (default: that of the file or folder).
        max_bytes: the maximum size of the cache of keys and values in bytes.
        max_length: the maximum number of tokens of a prompt and its text (default: that of the model, or of the cache).
        dtype: the element type of the cache: float32, float16, bfloat16 or int8.
        data_bits: the number of bits to which data are rounded before they are multiplied by the quantized weights of a
            GGUF file: 16 (default), which are as exact as float32, or 8, which are faster for prompts and many texts.
        template: the source of the chat template (default: that of the file, if it has one).
        metrics: the registry of metrics.
        adapters: folders of adapters of Hugging Face's PEFT, by the names that requests use.
        **options: further arguments of :class:`Generator`.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the model, its vocabulary or its chat template is not supported, or not one page fits the cache.
        ImportError: ``tokenizers`` or ``jinja2`` is not installed.
    """
    path = Path(path)
    if path.suffix != ".gguf" and path.is_file():
        raise ValueError(f"{path} is not a language model: expected a .gguf file, or a folder with tokenizer.json")
    tokenizer = (
        Tokenizer.from_gguf(gguf.load(path).metadata) if path.suffix == ".gguf" else Tokenizer.from_json(path)
    )  # fmt: skip
    more: dict[str, Any] = {} if data_bits is None else {"data_bits": data_bits}
    net = from_pretrained(path, **more)
    probe = PagedDecoder(net, 1, _PAGE, dtype)
    decoder = PagedDecoder(net, max(1, pages_within(max_bytes, probe.nbytes // 2) - 1), _PAGE, dtype)
    source = tokenizer.chat_template if template is None else template
    texts = ["" if token is None else tokenizer.token_text(token) for token in (tokenizer.bos, tokenizer.eos)]
    chat = None if source is None else ChatTemplate(source, *texts)
    generator = Generator(
        decoder, tokenizer, chat, name or path.stem, max_length=max_length or _max_length(net), metrics=metrics,
        **options,
    )  # fmt: skip
    for adapter, folder in adapters.items():
        generator.add_adapter(adapter, decoder.read_adapter(folder))
    return generator


def _max_length(net: Any) -> int | None:
    """Return the length that a model was made for, if it says so."""
    length = getattr(net, "max_length", None)
    return length if isinstance(length, int) else None
