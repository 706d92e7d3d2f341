"""BERT, with heads for masked words, classes of texts, and classes of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, cast, overload

from flowmx.gluon import nn
from flowmx.gluon.base_block import A
from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.model_zoo.calls import Pooled, without_nones
from flowmx.gluon.nn.positions import first_place
from flowmx.gluon.nn.transformer import ACTIVATIONS
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = ["BERT", "BERTClassifier", "BERTMaskedLM", "BERTTokenClassifier"]


class BERT(HybridBlock, Generic[Pooled]):
    """The encoder BERT (Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers, NAACL 2019).

    ``bert(tokens, token_types, padding)``; the last two are optional:

    - ``tokens``: (batch, length), their numbers in the vocabulary, any dtype; see ``mx.nd.Embedding``.
    - ``token_types``: (batch, length), 0 for the first text and 1 for the second, any dtype; default: all 0.
    - ``padding``: (batch, length), 1 for tokens, 0 for padding, any dtype; default: all 1.

    It returns the features of each token, (batch, length, units), and with ``pooler`` also those of the text, (batch,
    units), in the dtype of the weights. Features at padded places mean nothing.

    Args:
        vocab_size: the number of tokens in the vocabulary.
        units: the number of features.
        num_layers: the number of layers.
        num_heads: the number of heads, which divides ``units``.
        hidden_units: the number of features inside a feed-forward network (default: ``4 * units``).
        max_length: the maximum length of a text.
        token_types: the number of token types.
        dropout: the probability with which a feature is dropped in training.
        attention_dropout: the probability with which an attention weight is dropped.
        activation: that of the feed-forward networks; see :class:`~flowmx.gluon.nn.TransformerEncoderLayer`.
        epsilon: that of the normalizations.
        pooler: compute features of the text, from those of its first token.
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ValueError: ``num_heads`` does not divide ``units``, or an option is unknown.
        ShapeError: a text is longer than ``max_length`` (when called).

    Example:
        >>> bert = mx.gluon.model_zoo.text.BERT(vocab_size=100, units=8, num_layers=2, num_heads=2)
        >>> bert.initialize(mx.init.Normal(0.02))
        >>> features, pooled = bert(mx.nd.array([[1, 5, 2, 0]]), padding=mx.nd.array([[1, 1, 1, 0]]))
        >>> features.shape, pooled.shape
        ((1, 4, 8), (1, 8))
    """

    @overload
    def __init__(
        self: BERT[Literal[True]], vocab_size: int = 30522, units: int = 768, num_layers: int = 12, num_heads: int = 12,
        hidden_units: int | None = None, max_length: int = 512, token_types: int = 2, dropout: float = 0.1,
        attention_dropout: float = 0.1, activation: str = "gelu", epsilon: float = 1e-12, pooler: Literal[True] = True,
        **kwargs: Any,
    ) -> None: ...  # fmt: skip

    @overload
    def __init__(
        self: BERT[Literal[False]], vocab_size: int = ..., *, pooler: Literal[False], **options: Any
    ) -> None: ...

    @overload
    def __init__(self: BERT[bool], vocab_size: int = ..., *, pooler: bool, **options: Any) -> None: ...

    def __init__(
        self, vocab_size: int = 30522, units: int = 768, num_layers: int = 12, num_heads: int = 12,
        hidden_units: int | None = None, max_length: int = 512, token_types: int = 2, dropout: float = 0.1,
        attention_dropout: float = 0.1, activation: str = "gelu", epsilon: float = 1e-12, pooler: bool = True,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        with self.name_scope():
            self.words = nn.Embedding(vocab_size, units)
            self.token_types = nn.Embedding(token_types, units)
            self.positions = nn.LearnedPositions(max_length, units)
            self.norm = nn.LayerNorm(epsilon=epsilon, in_channels=units)
            self.dropout = nn.Dropout(dropout)
            self.encoder = nn.TransformerEncoder(
                num_layers, units, num_heads, hidden_units, dropout=dropout, attention_dropout=attention_dropout,
                hidden_dropout=0.0, activation=activation, epsilon=epsilon,
            )  # fmt: skip
            self.pooler = None
            if pooler:
                self.pooler = nn.Dense(units, activation="tanh", in_units=units)

    if TYPE_CHECKING:

        @overload
        def __call__(
            self: BERT[Literal[True]], tokens: A, token_types: A | None = None, padding: A | None = None
        ) -> tuple[A, A]: ...

        @overload
        def __call__(
            self: BERT[Literal[False]], tokens: A, token_types: A | None = None, padding: A | None = None
        ) -> A: ...

        @overload
        def __call__(
            self: BERT[bool], tokens: A, token_types: A | None = None, padding: A | None = None
        ) -> A | tuple[A, A]: ...

        def __call__(self, tokens: Any, token_types: Any = None, padding: Any = None) -> Any: ...

    else:

        def __call__(self, tokens: Any, token_types: Any = None, padding: Any = None) -> Any:
            """Compute the features; see the class."""
            return super().__call__(*without_nones(tokens, token_types, padding))

    def hybrid_forward(self, F: Functions, tokens: Any, token_types: Any = None, padding: Any = None) -> Any:
        token_types = F.zeros_like(tokens) if token_types is None else token_types
        x = self.positions(self.words(tokens) + self.token_types(token_types))
        x = self.encoder(self.dropout(self.norm(x)), padding=padding)
        return x if self.pooler is None else (x, self.pooler(first_place(F, x)))


class _Head(HybridBlock):
    """The base of networks of BERT and a head; it takes the inputs of BERT."""

    def __init__(self, pooler: bool, prefix: str | None, params: Any, options: dict[str, Any]) -> None:
        super().__init__(prefix=prefix, params=params)
        with self.name_scope():
            self.bert = BERT(pooler=pooler, **options)

    def __call__(self, tokens: A, token_types: A | None = None, padding: A | None = None) -> A:
        """Compute the outputs; see the class."""
        out: A = super().__call__(*without_nones(tokens, token_types, padding))
        return out


class BERTClassifier(_Head):
    """BERT with a layer for classes of texts.

    It takes the inputs of :class:`BERT`, and returns the logits, (batch, classes).

    Args:
        classes: the number of classes.
        head_dropout: the probability with which a feature of the text is dropped in training (default: ``dropout``).
        prefix: as for ``Block``.
        params: as for ``Block``.
        **options: arguments of :class:`BERT`.

    Example:
        >>> net = mx.gluon.model_zoo.text.BERTClassifier(3, units=8, num_layers=1, num_heads=2)
        >>> net.initialize(mx.init.Normal(0.02))
        >>> net(mx.nd.array([[1, 5, 2, 0]])).shape
        (1, 3)
    """

    def __init__(
        self, classes: int = 2, head_dropout: float | None = None, prefix: str | None = None, params: Any = None,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(True, prefix, params, options)
        with self.name_scope():
            self.dropout = nn.Dropout(options.get("dropout", 0.1) if head_dropout is None else head_dropout)
            self.output = nn.Dense(classes, in_units=options.get("units", 768))

    def hybrid_forward(self, F: Functions, tokens: Any, token_types: Any = None, padding: Any = None) -> Any:
        _, pooled = cast("tuple[Tensor, Tensor]", self.bert(tokens, token_types, padding))
        return self.output(self.dropout(pooled))


class BERTTokenClassifier(_Head):
    """BERT with a layer for classes of tokens, such as names, or the start and the end of an answer.

    It takes the inputs of :class:`BERT`, and returns the logits, (batch, length, classes).

    Args:
        classes: the number of classes.
        head_dropout: the probability with which a feature is dropped before that layer (default: ``dropout``).
        prefix: as for ``Block``.
        params: as for ``Block``.
        **options: arguments of :class:`BERT`.
    """

    def __init__(
        self, classes: int = 2, head_dropout: float | None = None, prefix: str | None = None, params: Any = None,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(False, prefix, params, options)
        with self.name_scope():
            self.dropout = nn.Dropout(options.get("dropout", 0.1) if head_dropout is None else head_dropout)
            self.output = nn.Dense(classes, flatten=False, in_units=options.get("units", 768))

    def hybrid_forward(self, F: Functions, tokens: Any, token_types: Any = None, padding: Any = None) -> Any:
        return self.output(self.dropout(cast("Tensor", self.bert(tokens, token_types, padding))))


class BERTMaskedLM(_Head):
    """BERT with a head that predicts masked words; its last layer has the weights of the words' embedding.

    It takes the inputs of :class:`BERT`, and returns the logits of each place, (batch, length, vocab_size).

    Args:
        prefix: as for ``Block``.
        params: as for ``Block``.
        **options: arguments of :class:`BERT`.
    """

    def __init__(self, prefix: str | None = None, params: Any = None, **options: Any) -> None:
        super().__init__(False, prefix, params, options)
        units = options.get("units", 768)
        with self.name_scope():
            self.transform = nn.Dense(units, flatten=False, in_units=units)
            self.activation = ACTIVATIONS[options.get("activation", "gelu")]()
            self.norm = nn.LayerNorm(epsilon=options.get("epsilon", 1e-12), in_channels=units)
            self.output = nn.Dense(
                options.get("vocab_size", 30522), flatten=False, in_units=units, params=self.bert.words.params
            )

    def hybrid_forward(self, F: Functions, tokens: Any, token_types: Any = None, padding: Any = None) -> Any:
        x = cast("Tensor", self.bert(tokens, token_types, padding))
        return self.output(self.norm(self.activation(self.transform(x))))
