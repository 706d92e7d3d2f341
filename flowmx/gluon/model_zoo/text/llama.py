"""Llama and its relatives Mistral, Qwen and Gemma: causal language models with rotary positions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, overload

from flowmx.errors import ParameterError
from flowmx.gluon import nn
from flowmx.gluon.base_block import A
from flowmx.gluon.hybrid import HybridBlock, Layer
from flowmx.gluon.model_zoo.calls import CausalBlock, without_nones
from flowmx.gluon.nn.paged import PagedCache
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import DTypeLike
from flowmx.ops.registry.tensors import Functions

__all__ = ["Llama", "LlamaLM", "LlamaLayer"]

_ACTIVATIONS: Mapping[str, Callable[[], Layer]] = {
    "swiglu": nn.SwiGLU, "geglu": nn.GEGLU, "geglu_tanh": lambda: nn.GEGLU(approximation="tanh"),
}  # fmt: skip
_VOCABULARY, _UNITS = 32000, 4096
"""The sizes of Llama 2 with seven billion parameters."""


class LlamaLayer(HybridBlock):
    """A layer of :class:`Llama`: attention and a gated feed-forward network.

    The input of each part is normalized, and added to its output.

    ``layer(x, padding, cache)``: as for :class:`~flowmx.gluon.nn.TransformerEncoderLayer`.

    Args:
        units: the number of features.
        num_heads: the number of heads of queries.
        hidden_units: the number of features inside the feed-forward network.
        activation: ``"swiglu"``, ``"geglu"`` or ``"geglu_tanh"``.
        epsilon: that of the normalizations.
        out_norms: normalize the outputs of both parts too, before they are added (Gemma).
        prefix: as for ``Block``.
        params: as for ``Block``.
        **attention: other arguments of :class:`~flowmx.gluon.nn.MultiHeadAttention`.

    Raises:
        ValueError: the activation is unknown, or an argument of the attention is invalid.
    """

    def __init__(
        self, units: int, num_heads: int, hidden_units: int, activation: str = "swiglu", epsilon: float = 1e-5,
        out_norms: bool = False, *, prefix: str | None = None, params: Any = None, **attention: Any,
    ) -> None:  # fmt: skip
        if activation not in _ACTIVATIONS:
            raise ParameterError(
                f"LlamaLayer: activation is {activation!r}, expected one of {', '.join(map(repr, _ACTIVATIONS))}"
            )
        if hidden_units < 1:
            raise ParameterError(f"LlamaLayer: hidden_units is {hidden_units}, expected 1 or more")
        super().__init__(prefix=prefix, params=params)

        def norm() -> nn.RMSNorm:
            return nn.RMSNorm(epsilon=epsilon, in_channels=units)

        with self.name_scope():
            self.attention = nn.MultiHeadAttention(units, num_heads, causal=True, in_units=units, **attention)
            self.widen = nn.Dense(2 * hidden_units, use_bias=False, flatten=False, in_units=units)
            self.activation = _ACTIVATIONS[activation]()
            self.narrow = nn.Dense(units, use_bias=False, flatten=False, in_units=hidden_units)
            self.attention_norm, self.hidden_norm = norm(), norm()
            self.attention_out_norm = norm() if out_norms else None
            self.hidden_out_norm = norm() if out_norms else None

    def begin_cache(self, batch_size: int, max_length: int, dtype: DTypeLike = None, ctx: Any = None) -> list[NDArray]:
        """Return an empty cache: see :meth:`MultiHeadAttention.begin_cache`."""
        return self.attention.begin_cache(batch_size, max_length, dtype, ctx)

    if TYPE_CHECKING:

        @overload
        def __call__(self, x: A, padding: A | None = None, cache: None = None) -> A: ...

        @overload
        def __call__(self, x: A, padding: A | None = None, *, cache: Sequence[A]) -> tuple[A, list[A]]: ...

    def __call__(self, x: Any, padding: Any = None, cache: Any = None) -> Any:
        """Compute the features; see the class."""
        return super().__call__(*without_nones(x, padding, cache))

    def hybrid_forward(self, F: Functions, x: Any, padding: Any = None, cache: Any = None) -> Any:
        out = self.attention(self.attention_norm(x), padding=padding, cache=cache)
        out, following = (out, None) if cache is None else out
        x = self.finish(x, out)
        return x if cache is None else (x, following)

    def attend_pages(self, x: Any, pages: PagedCache, layer: int) -> Any:
        """Return the features of the tokens of a decode step: see :meth:`MultiHeadAttention.attend_pages`."""
        return self.finish(x, self.attention.attend_pages(self.attention_norm(x), pages, layer))

    def finish(self, x: Any, out: Any) -> Any:
        """Return the output of the layer for its input and the output of its attention."""
        x = x + (out if self.attention_out_norm is None else self.attention_out_norm(out))
        out = self.narrow(self.activation(self.widen(self.hidden_norm(x))))
        return x + (out if self.hidden_out_norm is None else self.hidden_out_norm(out))


class Llama(CausalBlock):
    """The decoder-only network Llama (Touvron et al., LLaMA, 2023), and its relatives.

    The defaults are those of Llama 2 with seven billion parameters; options make it Llama 3, SmolLM2, Mistral, Qwen 2
    and 3, and Gemma 3. :func:`~flowmx.gluon.model_zoo.from_pretrained` sets them from a model's files.

    ``llama(tokens, padding, cache)``: inputs and outputs are those of :class:`GPT2`.

    Args:
        vocab_size: the number of tokens in the vocabulary.
        units: the number of features.
        num_layers: the number of layers.
        num_heads: the number of heads of queries.
        num_key_heads: the number of heads of keys and values (default: ``num_heads``).
        head_units: the number of features of a head (default: ``units / num_heads``).
        hidden_units: the number of features inside a feed-forward network.
        max_length: the maximum length of a text that the model was trained for; not a limit.
        activation: ``"swiglu"``, ``"geglu"`` or ``"geglu_tanh"``.
        epsilon: that of the normalizations.
        rotary_base: the base of the rotary positions.
        rotary_scaling: their scaling; see :class:`~flowmx.gluon.nn.RotaryPositions`.
        attention_bias: add a bias to queries, keys and values (Qwen 2).
        out_bias: add a bias to the output of the attention (default: as ``attention_bias``).
        head_norms: normalize each head of queries and keys (Qwen 3, Gemma 3).
        out_norms: normalize the outputs of attention and feed-forward networks (Gemma 3).
        window: the number of last positions that a token sees (Mistral, Gemma 3; default: all).
        window_layers: the indices of the layers with that window (default: all).
        window_rotary_base: the base of the rotary positions in layers with a window, which are not scaled then.
        attention_scale: the factor of the products of queries and keys (default: ``1 / sqrt(head_units)``).
        score_cap: see :class:`~flowmx.gluon.nn.MultiHeadAttention`.
        embedding_scale: the factor of the embeddings (Gemma 3: ``sqrt(units)``).
        attention_dropout: the probability with which an attention weight is dropped in training.
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ValueError: sizes do not fit together, or an option is unknown.
    """

    def __init__(
        self, vocab_size: int = _VOCABULARY, units: int = _UNITS, num_layers: int = 32, num_heads: int = 32,
        num_key_heads: int | None = None, head_units: int | None = None, hidden_units: int = 11008,
        max_length: int = 4096, activation: str = "swiglu", epsilon: float = 1e-5, rotary_base: float = 10000.0,
        rotary_scaling: Mapping[str, object] | None = None, attention_bias: bool = False, out_bias: bool | None = None,
        head_norms: bool = False, out_norms: bool = False, window: int | None = None,
        window_layers: Collection[int] | None = None, window_rotary_base: float | None = None,
        attention_scale: float | None = None, score_cap: float | None = None, embedding_scale: float = 1.0,
        attention_dropout: float = 0.0, **kwargs: Any,
    ) -> None:  # fmt: skip
        if num_layers < 1:
            raise ParameterError(f"Llama: num_layers is {num_layers}, expected 1 or more")
        super().__init__(**kwargs)
        self.max_length, self._embedding_scale = max_length, embedding_scale
        rotary = {"base": rotary_base, "scaling": rotary_scaling}
        near = rotary if window_rotary_base is None else {"base": window_rotary_base}
        options: dict[str, Any] = {
            "activation": activation, "epsilon": epsilon, "out_norms": out_norms, "dropout": attention_dropout,
            "use_bias": attention_bias, "out_bias": out_bias, "num_key_heads": num_key_heads,
            "head_units": head_units, "scale": attention_scale, "score_cap": score_cap,
            "norm_epsilon": epsilon if head_norms else None,
        }  # fmt: skip
        with self.name_scope():
            self.words = nn.Embedding(vocab_size, units)
            self.layers = nn.HybridSequential()
            for index in range(num_layers):
                is_near = window is not None and (window_layers is None or index in window_layers)
                place = {"window": window, "rotary": near} if is_near else {"rotary": rotary}
                self.layers.add(LlamaLayer(units, num_heads, hidden_units, **options, **place))
            self.norm = nn.RMSNorm(epsilon=epsilon, in_channels=units)

    def begin_cache(
        self, batch_size: int, max_length: int, dtype: DTypeLike = None, ctx: Any = None
    ) -> list[list[NDArray]]:
        """Return an empty cache for each layer: see :meth:`MultiHeadAttention.begin_cache`."""
        layers: Any = self.layers
        return [layer.begin_cache(batch_size, max_length, dtype, ctx) for layer in layers]

    def hybrid_forward(self, F: Functions, tokens: Any, padding: Any = None, cache: Any = None) -> Any:
        x, following = self.embed(tokens), []
        for index, layer in enumerate(self.layers):
            if cache is None:
                x = layer(x, padding)
            else:
                x, part = layer(x, padding, cache[index])
                following.append(part)
        x = self.norm(x)
        return x if cache is None else (x, following)

    def attend_pages(self, tokens: Any, pages: PagedCache) -> Any:
        """Return the features (tokens, units) of the tokens (tokens,) of a decode step."""
        x, layers = self.embed(tokens), cast("Sequence[LlamaLayer]", self.layers)
        for index, layer in enumerate(layers):
            x = layer.attend_pages(x, pages, index)
        return self.norm(x)

    def embed(self, tokens: Any) -> Any:
        """Return the features of tokens before the first layer."""
        x = self.words(tokens)
        return x if self._embedding_scale == 1 else x * self._embedding_scale


class LlamaLM(CausalBlock):
    """Llama or a relative with the head that predicts the next token.

    It takes the inputs of :class:`Llama`, and returns the logits of each place, (batch, length, vocab_size); with a
    cache, these and the next cache.

    Args:
        tied: the head has the weights of the words' embedding.
        logit_cap: bounds the logits: ``logit_cap * tanh(logits / logit_cap)`` (default: no bound).
        prefix: as for ``Block``.
        params: as for ``Block``.
        **options: arguments of :class:`Llama`.

    Example:
        >>> net = mx.gluon.model_zoo.text.LlamaLM(
        ...     vocab_size=50, units=8, num_layers=2, num_heads=4, num_key_heads=2, hidden_units=16)
        >>> net.initialize(mx.init.Normal(0.02))
        >>> net(mx.nd.array([[7, 8, 9]])).shape
        (1, 3, 50)
    """

    def __init__(
        self, tied: bool = False, logit_cap: float | None = None, prefix: str | None = None, params: Any = None,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(prefix=prefix, params=params)
        self._logit_cap = logit_cap
        with self.name_scope():
            self.llama = Llama(**options)
            self.output = nn.Dense(
                options.get("vocab_size", _VOCABULARY), use_bias=False, flatten=False,
                in_units=options.get("units", _UNITS), params=self.llama.words.params if tied else None,
            )  # fmt: skip

    def begin_cache(
        self, batch_size: int, max_length: int, dtype: DTypeLike = None, ctx: Any = None
    ) -> list[list[NDArray]]:
        """Return an empty cache for each layer: see :meth:`MultiHeadAttention.begin_cache`."""
        return self.llama.begin_cache(batch_size, max_length, dtype, ctx)

    def hybrid_forward(self, F: Functions, tokens: Any, padding: Any = None, cache: Any = None) -> Any:
        if cache is None:
            return self.predict(F, self.llama(tokens, padding))
        x, cache = self.llama(tokens, padding, cache)
        return self.predict(F, x), cache

    @property
    def max_length(self) -> int:
        """The maximum length of a text that the model was made for."""
        return int(self.llama.max_length)

    @property
    def page_heads(self) -> list[tuple[int, int]]:
        """The number of heads of keys and values of each layer, and the features of each, for a paged cache."""
        layers = cast("Sequence[LlamaLayer]", self.llama.layers)
        return [layer.attention.page_heads for layer in layers]

    def attend_pages(self, tokens: Any, pages: PagedCache) -> Any:
        """Return the features of the tokens of a decode step: see :meth:`Llama.attend_pages`."""
        return self.llama.attend_pages(tokens, pages)

    def predict(self, F: Functions, x: Any) -> Any:
        """Return the logits of features."""
        logits = self.output(x)
        if self._logit_cap is None:
            return logits
        return F.tanh(logits * (1 / self._logit_cap)) * self._logit_cap
