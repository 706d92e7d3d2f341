"""A causal language model with a paged cache: it computes decode steps of many sequences at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray as HostArray

from flowmx import ndarray as nd
from flowmx.devices import Context, current_context
from flowmx.errors import ArgumentKindError, ParameterError, ShapeError
from flowmx.generation.adapters import AdapterTable
from flowmx.generation.step_batch import StepBatch
from flowmx.generation.step_forms import StepForms, all_forms, forms_of
from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.lora.table import masked
from flowmx.gluon.lora.weights import AdapterWeights, read
from flowmx.gluon.nn.paged import PagedCache
from flowmx.keywords import ChecksKeywords
from flowmx.ndarray import NDArray
from flowmx.ops.nn.paged_attention import cache_shape
from flowmx.ops.registry.dtypes import DTypeLike, as_dtype, name_of
from flowmx.ops.registry.tensors import Functions
from flowmx.suggestions import did_you_mean

__all__ = ["PagedDecoder", "PagedModel"]

_DTYPES = ("float32", "float16", "bfloat16", "int8")


class PagedModel(Protocol):
    """The methods of a network that a :class:`PagedDecoder` needs, besides those of a ``HybridBlock``."""

    @property
    def page_heads(self) -> list[tuple[int, int]]:
        """The number of heads of keys and values of each layer, and the features of each."""

    def attend_pages(self, tokens: Any, pages: PagedCache) -> Any:
        """Return the features (tokens, units) of the tokens (tokens,) of a decode step."""

    def predict(self, F: Functions, x: Any) -> Any:
        """Return the logits of features."""


class _Step(HybridBlock):
    """A decode step: the logits of some of its tokens."""

    def __init__(self, net: HybridBlock, page_size: int) -> None:
        super().__init__()
        self.net = net
        self._page_size = page_size

    def hybrid_forward(
        self, F: Functions, tokens: Any, positions: Any, slots: Any, sequences: Any, tables: Any, rows: Any, cache: Any
    ) -> Any:
        net = cast("PagedModel", self.net)
        pages = PagedCache(F, cache, self._page_size, positions, slots, sequences, tables, {})
        return net.predict(F, F.take(net.attend_pages(tokens, pages), rows))


class _AdaptedStep(_Step):
    """A decode step whose tokens have adapters."""

    def hybrid_forward(  # type: ignore[override]
        self, F: Functions, tokens: Any, positions: Any, slots: Any, sequences: Any, tables: Any, rows: Any, mask: Any,
        cache: Any,
    ) -> Any:  # fmt: skip
        net = cast("PagedModel", self.net)
        pages = PagedCache(F, cache, self._page_size, positions, slots, sequences, tables, {})
        with masked(mask):
            features = net.attend_pages(tokens, pages)
        with masked(F.take(mask, rows)):
            return net.predict(F, F.take(features, rows))


class PagedDecoder(ChecksKeywords):
    """A network and the cache of its sequences.

    The network is hybridized. Its parameters may change between two steps: a step reads them, and the engine orders
    both.

    Args:
        net: a language model of ``mx.gluon.model_zoo.text``, such as ``LlamaLM`` or ``GPT2LM``, or another hybrid block
            with the methods of :class:`PagedModel`, with initialized parameters.
        pages: the number of pages.
        page_size: the number of positions of a page; multiples of 16 are fast.
        dtype: the element type of the cache: float32, float16, bfloat16 or int8.
        ctx: the device (default: that of the parameters).
        max_adapter_bytes: the maximum size of the table of adapters in bytes; see :meth:`add_adapter`.

    Attributes:
        net: the network.
        pages: the number of pages.
        page_size: the number of positions of a page.
        nbytes: the size of the cache in bytes.

    Raises:
        TypeError: the network lacks a method.
        ValueError: a number or the dtype is invalid, or the layers have different heads.
    """

    def __init__(
        self, net: Any, pages: int, page_size: int = 16, dtype: DTypeLike = "float32",
        ctx: Context | None = None, max_adapter_bytes: int = 1 << 30,
    ) -> None:  # fmt: skip
        if not isinstance(net, HybridBlock) or not all(
            hasattr(net, each) for each in ("page_heads", "attend_pages", "predict")
        ):
            raise ArgumentKindError(
                f"PagedDecoder: net is {type(net).__name__}, expected a language model, such as "
                "mx.gluon.model_zoo.from_pretrained(folder), or a hybrid block with page_heads, attend_pages and "
                "predict; mx.generation.load(file) creates a Generator with its decoder"
            )
        if pages < 1 or page_size < 1:
            raise ParameterError(
                f"PagedDecoder: pages is {pages} and page_size {page_size}, expected 1 or more of both"
            )
        element = as_dtype(dtype)
        if name_of(element) not in _DTYPES:
            raise ParameterError(f"PagedDecoder: dtype is {name_of(element)}, expected one of {', '.join(_DTYPES)}")
        heads = cast("PagedModel", net).page_heads
        if len(set(heads)) != 1:
            raise ParameterError(f"PagedDecoder: the heads of the layers are {heads}, expected the same in every layer")
        self.net, self.pages, self.page_size = net, pages, page_size
        self._context = _context(net) if ctx is None else ctx
        shape = cache_shape(len(heads), pages + 1, heads[0][0], page_size, heads[0][1], element)
        self._cache = nd.zeros(shape, dtype=element, ctx=self._context)
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * element.itemsize
        self._step = _Step(net, page_size)
        self._step.hybridize(static_alloc=True)
        self._adapters = AdapterTable(net, self._context, max_adapter_bytes)
        self._adapted: tuple[int, _AdaptedStep] | None = None
        self._compiled: set[tuple[StepForms, int | None]] = set()

    def step(self, batch: StepBatch) -> NDArray:
        """Push a decode step; return the logits (R, vocabulary) of the tokens in ``batch.rows``.

        The keys and values of all tokens are written to the cache. This never waits.

        Raises:
            ShapeError: the arrays of the batch do not fit together.
            IndexError: a slot, a sequence, a page or a row does not exist.
        """
        self._check(batch)
        return self._push(batch)

    def _push(self, batch: StepBatch) -> NDArray:
        """Push a step whose batch is valid."""
        forms = forms_of(batch)
        arrays = [nd.array(each, dtype="int32", ctx=self._context) for each in self._padded(batch, forms)]
        if batch.adapters is not None and (batch.adapters >= 0).any():
            table = self._adapters.apply()
            padded = np.pad(batch.adapters, (0, forms.tokens - len(batch.adapters)), constant_values=-1)
            arrays.append(nd.array(table.mask(padded), ctx=self._context))
            step: _Step = self._adapted_step(table.generation)
            self._compiled.add((forms, table.generation))
        else:
            step = self._step
            self._compiled.add((forms, None))
        logits = cast("NDArray", step(*arrays, self._cache))
        count = len(batch.rows)
        return logits if count == forms.rows else logits[:count]

    def is_new(self, batch: StepBatch) -> bool:
        """Return whether :meth:`step` takes about 0.1 seconds, to compile a graph or to write the table of adapters."""
        key = self._key(batch)
        return key not in self._compiled or (key[1] is not None and self._adapters.is_dirty)

    def forms(self, max_sequences: int, max_tokens: int, max_length: int) -> Iterator[StepForms]:
        """Iterate over the shapes of all batches within limits.

        Args:
            max_sequences: the maximum number of sequences in a step.
            max_tokens: the maximum number of tokens in a step.
            max_length: the maximum number of tokens of a sequence.
        """
        pages = -(-max_length // self.page_size)
        return all_forms(max_sequences, max_tokens, pages)

    @property
    def has_adapters(self) -> bool:
        """Whether steps may have adapters."""
        return self._adapters.width > 0

    def warm_up(self, forms: StepForms, has_adapters: bool = False) -> NDArray:
        """Push a step of these shapes without effect, so that later ones are not new."""
        numbers, tables = np.zeros(forms.tokens, np.int32), np.zeros((forms.sequences, forms.pages), np.int32)
        slots, rows = np.full_like(numbers, self._spare), np.zeros(forms.rows, np.int32)
        return self._push(StepBatch(numbers, numbers, slots, numbers, tables, rows, numbers if has_adapters else None))

    def add_adapter(self, weights: AdapterWeights) -> int:
        """Add a low-rank adapter; return its slot, for ``StepBatch.adapters``.

        The next step with an adapter writes it into the network, whose layers are wrapped. Dense forwards of the
        network stay without adapters.

        Raises:
            Overloaded: the table of adapters would be too large.
        """
        return self._adapters.add(weights)

    def remove_adapter(self, slot: int) -> None:
        """Free the slot of an adapter, which no later step uses."""
        self._adapters.remove(slot)

    def read_adapter(self, folder: str | os.PathLike[str]) -> AdapterWeights:
        """Read an adapter of the network from a folder of Hugging Face's PEFT: see :func:`flowmx.gluon.lora.read`."""
        return read(self.net, folder)

    @property
    def _spare(self) -> int:
        """The first slot of the last page, which no sequence has."""
        return self.pages * self.page_size

    def _key(self, batch: StepBatch) -> tuple[StepForms, int | None]:
        """Return the shapes of a batch, and which adapters its graph has."""
        has_adapters = batch.adapters is not None and bool((batch.adapters >= 0).any())
        return forms_of(batch), self._adapters.generation if has_adapters else None

    def _adapted_step(self, generation: int) -> _AdaptedStep:
        """Return the step for a table of adapters."""
        if self._adapted is None or self._adapted[0] != generation:
            step = _AdaptedStep(self.net, self.page_size)
            step.hybridize(static_alloc=True)
            self._adapted = generation, step
        return self._adapted[1]

    def copy_page(self, source: int, target: int) -> None:
        """Push an operation that copies a page's keys and values to another page.

        Raises:
            IndexError: a page does not exist.
        """
        for page in (source, target):
            if not 0 <= page < self.pages:
                raise IndexError(f"PagedDecoder: there is no page {page}, only 0 to {self.pages - 1}")
        self._cache[:, :, target : target + 1] = self._cache[:, :, source : source + 1]

    def clear(self) -> None:
        """Push the erasure of the cache."""
        self._cache[:] = 0

    def set_parameters(self, parameters: Mapping[str, NDArray]) -> None:
        """Push new values of parameters, by name.

        Raises:
            ParameterError: the network has no parameter of a name; then none is changed.
            ShapeError: the shape of a value differs from its parameter's.
        """
        own = self.net.collect_params()
        for name, value in parameters.items():
            if name not in own:
                raise ParameterError(
                    f"PagedDecoder: the network has no parameter {name!r}{did_you_mean(name, list(own))}"
                )
            if own[name].shape != value.shape:
                raise ShapeError(f"PagedDecoder: {name} has the shape {value.shape}, expected {own[name].shape}")
        for name, value in parameters.items():
            own[name].set_data(value)

    def _padded(self, batch: StepBatch, forms: StepForms) -> list[HostArray[np.int32]]:
        """Return the arrays of a batch in their forms: padding is written to the last page, which no sequence has."""
        more = forms.tokens - len(batch.tokens)
        tokens, positions = (np.pad(each, (0, more)) for each in (batch.tokens, batch.positions))
        spare = self._spare + np.arange(more, dtype=np.int32) % self.page_size
        slots = np.concatenate([batch.slots, spare])
        sequences = np.pad(batch.sequences, (0, more), mode="edge")
        tables = np.zeros((forms.sequences, forms.pages), np.int32)
        tables[: batch.tables.shape[0], : batch.tables.shape[1]] = batch.tables
        rows = np.pad(batch.rows, (0, forms.rows - len(batch.rows)))
        return [tokens, positions, slots, sequences, tables, rows]

    def _check(self, batch: StepBatch) -> None:
        count = len(batch.tokens)
        shapes = [np.shape(each) for each in batch[:6]]
        if not count or shapes[:4] != [(count,)] * 4 or len(shapes[4]) != 2 or len(shapes[5]) != 1:
            names = ", ".join(f"{name} {shape}" for name, shape in zip(batch._fields, shapes, strict=False))
            raise ShapeError(f"PagedDecoder: the shapes are {names}, expected (T,) four times, (S, P) and (R,)")
        tables = batch.tables
        limits = {
            "positions": tables.shape[1] * self.page_size, "slots": self._spare,
            "sequences": tables.shape[0], "tables": self.pages, "rows": count,
        }  # fmt: skip
        for name, limit in limits.items():
            array = getattr(batch, name)
            if array.size and not 0 <= array.min() <= array.max() < limit:
                raise IndexError(f"PagedDecoder: {name} has {array.min()} to {array.max()}, expected 0 to {limit - 1}")


def _context(net: HybridBlock) -> Context:
    """Return the device of a network's parameters."""
    for parameter in net.collect_params().values():
        return parameter.list_ctx()[0]
    return current_context()
