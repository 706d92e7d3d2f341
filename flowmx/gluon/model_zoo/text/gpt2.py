"""GPT-2, a causal language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from flowmx.gluon import nn
from flowmx.gluon.model_zoo.calls import CausalBlock
from flowmx.gluon.nn.paged import PagedCache
from flowmx.gluon.nn.positions import cached_positions
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import DTypeLike
from flowmx.ops.registry.tensors import Functions

__all__ = ["GPT2", "GPT2LM"]


class GPT2(CausalBlock):
    """The decoder-only network GPT-2 (Radford et al., Language Models are Unsupervised Multitask Learners, 2019).

    ``gpt2(tokens, padding, cache)``; the last two are optional:

    - ``tokens``: (batch, length), their numbers in the vocabulary, any dtype; see ``mx.nd.Embedding``.
    - ``padding``: (batch, length), 1 for tokens, 0 for padding, any dtype. With a cache, its length is that of the
      cache.
    - ``cache``: from :meth:`begin_cache` or the last call.

    It returns the features of each token, (batch, length, units), in the dtype of the weights. With a cache it returns
    that and the next cache.

    Args:
        vocab_size: the number of tokens in the vocabulary.
        units: the number of features.
        num_layers: the number of layers.
        num_heads: the number of heads, which divides ``units``.
        hidden_units: the number of features inside a feed-forward network (default: ``4 * units``).
        max_length: the maximum length of a text.
        dropout: the probability with which a feature is dropped in training.
        attention_dropout: the probability with which an attention weight is dropped.
        embedding_dropout: the probability with which a feature is dropped before the first layer.
        activation: that of the feed-forward networks; see :class:`~flowmx.gluon.nn.TransformerEncoderLayer`.
        epsilon: that of the normalizations.
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ValueError: ``num_heads`` does not divide ``units``, or an option is unknown.
        ShapeError: a text is longer than ``max_length`` (when called).
        IndexError: the cache is full, or longer than ``max_length`` (when the output is read).
    """

    def __init__(
        self, vocab_size: int = 50257, units: int = 768, num_layers: int = 12, num_heads: int = 12,
        hidden_units: int | None = None, max_length: int = 1024, dropout: float = 0.1, attention_dropout: float = 0.1,
        embedding_dropout: float = 0.1, activation: str = "gelu_tanh", epsilon: float = 1e-5, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self.max_length = max_length
        with self.name_scope():
            self.words = nn.Embedding(vocab_size, units)
            self.positions = nn.LearnedPositions(max_length, units)
            self.dropout = nn.Dropout(embedding_dropout)
            self.decoder = nn.TransformerEncoder(
                num_layers, units, num_heads, hidden_units, dropout=dropout, attention_dropout=attention_dropout,
                hidden_dropout=0.0, activation=activation, pre_norm=True, causal=True, epsilon=epsilon,
            )  # fmt: skip

    def begin_cache(
        self, batch_size: int, max_length: int, dtype: DTypeLike = None, ctx: Any = None
    ) -> list[list[NDArray]]:
        """Return an empty cache for each layer: see :meth:`MultiHeadAttention.begin_cache`."""
        return self.decoder.begin_cache(batch_size, max_length, dtype, ctx)

    def hybrid_forward(self, F: Functions, tokens: Any, padding: Any = None, cache: Any = None) -> Any:
        x = self.words(tokens)
        x = self.positions(x) if cache is None else self.positions(x, cached_positions(F, x, cache[0]))
        return self.decoder(self.dropout(x), padding=padding, cache=cache)

    def attend_pages(self, tokens: Any, pages: PagedCache) -> Any:
        """Return the features (tokens, units) of the tokens (tokens,) of a decode step."""
        F = pages.F
        x = F.Reshape(self.positions(F.expand_dims(self.words(tokens), axis=0), pages.positions), shape=(-3, 0))
        for index, layer in enumerate(cast("Sequence[nn.TransformerEncoderLayer]", self.decoder.layers)):
            x = layer.attend_pages(x, pages, index)
        assert self.decoder.norm is not None
        return self.decoder.norm(x)


class GPT2LM(CausalBlock):
    """GPT-2 with the head that predicts the next token; its layer has the weights of the words' embedding.

    It takes the inputs of :class:`GPT2`, and returns the logits of each place, (batch, length, vocab_size); with a
    cache, these and the next cache.

    Args:
        prefix: as for ``Block``.
        params: as for ``Block``.
        **options: arguments of :class:`GPT2`.

    Example:
        >>> net = mx.gluon.model_zoo.text.GPT2LM(vocab_size=50, units=8, num_layers=2, num_heads=2)
        >>> net.initialize(mx.init.Normal(0.02))
        >>> cache, token = net.begin_cache(batch_size=1, max_length=16), mx.nd.array([[7]])
        >>> for step in range(3):
        ...     logits, cache = net(token, cache=cache)
        ...     token = logits.argmax(axis=2)
        >>> logits.shape
        (1, 1, 50)
    """

    def __init__(self, prefix: str | None = None, params: Any = None, **options: Any) -> None:
        super().__init__(prefix=prefix, params=params)
        with self.name_scope():
            self.gpt2 = GPT2(**options)
            self.output = nn.Dense(
                options.get("vocab_size", 50257), use_bias=False, flatten=False, in_units=options.get("units", 768),
                params=self.gpt2.words.params,
            )  # fmt: skip

    def begin_cache(
        self, batch_size: int, max_length: int, dtype: DTypeLike = None, ctx: Any = None
    ) -> list[list[NDArray]]:
        """Return an empty cache for each layer: see :meth:`MultiHeadAttention.begin_cache`."""
        return self.gpt2.begin_cache(batch_size, max_length, dtype, ctx)

    def hybrid_forward(self, F: Functions, tokens: Any, padding: Any = None, cache: Any = None) -> Any:
        if cache is None:
            return self.output(self.gpt2(tokens, padding))
        x, cache = self.gpt2(tokens, padding, cache)
        return self.output(x), cache

    @property
    def max_length(self) -> int:
        """The maximum length of a text that the model was made for."""
        return int(self.gpt2.max_length)

    @property
    def page_heads(self) -> list[tuple[int, int]]:
        """The number of heads of keys and values of each layer, and the features of each, for a paged cache."""
        layers = cast("Sequence[nn.TransformerEncoderLayer]", self.gpt2.decoder.layers)
        return [layer.attention.page_heads for layer in layers]

    def attend_pages(self, tokens: Any, pages: PagedCache) -> Any:
        """Return the features of the tokens of a decode step: see :meth:`GPT2.attend_pages`."""
        return self.gpt2.attend_pages(tokens, pages)

    def predict(self, F: Functions, x: Any) -> Any:
        """Return the logits of features."""
        return self.output(x)
