"""Transformer layers: attention and a feed-forward network with residual connections, and stacks of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

from flowmx.devices import Context
from flowmx.errors import ParameterError
from flowmx.gluon.base_block import A
from flowmx.gluon.hybrid import HybridBlock, Layer
from flowmx.gluon.nn.activations import GELU, Activation, SiLU
from flowmx.gluon.nn.attention import MultiHeadAttention
from flowmx.gluon.nn.basic_layers import Dense, Dropout, HybridSequential
from flowmx.gluon.nn.gated import GEGLU, GLU, SwiGLU
from flowmx.gluon.nn.norm_layers import LayerNorm, RMSNorm
from flowmx.gluon.nn.paged import PagedCache
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import DTypeLike
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = ["TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer"]

ACTIVATIONS: dict[str, Callable[[], Layer]] = {
    "relu": lambda: Activation("relu"), "gelu": GELU, "gelu_tanh": lambda: GELU("tanh"), "silu": SiLU, "glu": GLU,
    "swiglu": SwiGLU, "geglu": GEGLU,
}  # fmt: skip
"""The activations of feed-forward networks, by name."""
_GATED = ("glu", "swiglu", "geglu")
_NORMS: dict[str, Callable[..., Layer]] = {"layer": LayerNorm, "rms": RMSNorm}


class _TransformerLayer(HybridBlock):
    """The base of encoder and decoder layers; the arguments are documented there."""

    def __init__(
        self, units: int, num_heads: int, hidden_units: int | None, dropout: float, activation: str, pre_norm: bool,
        norm: str, epsilon: float, causal: bool, rotary: bool | dict[str, Any], use_bias: bool,
        attention_dropout: float | None, hidden_dropout: float | None, sublayers: int, **kwargs: Any,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        if activation not in ACTIVATIONS:
            raise ParameterError(
                f"{name}: activation is {activation!r}, expected one of {', '.join(map(repr, ACTIVATIONS))}"
            )
        if norm not in _NORMS:
            raise ParameterError(f"{name}: norm is {norm!r}, expected 'layer' or 'rms'")
        if hidden_units is not None and hidden_units < 1:
            raise ParameterError(f"{name}: hidden_units is {hidden_units}, expected 1 or more")
        super().__init__(**kwargs)
        self._pre_norm = pre_norm
        hidden = 4 * units if hidden_units is None else hidden_units
        attention_dropout = dropout if attention_dropout is None else attention_dropout
        hidden_dropout = dropout if hidden_dropout is None else hidden_dropout
        attention: dict[str, Any] = {"dropout": attention_dropout, "use_bias": use_bias, "in_units": units}
        with self.name_scope():
            self.attention = MultiHeadAttention(units, num_heads, causal=causal, rotary=rotary, **attention)
            if sublayers == 3:
                self.cross_attention = MultiHeadAttention(units, num_heads, **attention)
            widened = 2 * hidden if activation in _GATED else hidden
            self.widen = Dense(widened, use_bias=use_bias, flatten=False, in_units=units)
            self.activation = ACTIVATIONS[activation]()
            self.narrow = Dense(units, use_bias=use_bias, flatten=False, in_units=hidden)
            self.dropout = Dropout(dropout)
            self.hidden_dropout = Dropout(hidden_dropout)
            self.norms = HybridSequential()
            for _ in range(sublayers):
                self.norms.add(_NORMS[norm](epsilon=epsilon, in_channels=units))

    def begin_cache(
        self, batch_size: int, max_length: int, dtype: DTypeLike = None, ctx: Context | None = None
    ) -> list[NDArray]:
        """Return an empty cache of the self-attention: see :meth:`MultiHeadAttention.begin_cache`."""
        return self.attention.begin_cache(batch_size, max_length, dtype, ctx)

    def _attend(self, x: Tensor, mask: Tensor | None, padding: Tensor | None, cache: Any) -> tuple[Any, Any]:
        """Apply self-attention; return the result and the next cache."""
        out = self.attention(self._sublayer_input(0, x), mask=mask, padding=padding, cache=cache)
        out, cache = (out, None) if cache is None else out
        return self._add_residual(0, x, out), cache

    def attend_pages(self, x: Tensor, pages: PagedCache, layer: int) -> Any:
        """Return the features of the tokens of a decode step: see :meth:`MultiHeadAttention.attend_pages`."""
        x = self._add_residual(0, x, self.attention.attend_pages(self._sublayer_input(0, x), pages, layer))
        return self._feed_forward(1, x)

    def _feed_forward(self, index: int, x: Tensor) -> Tensor:
        """Apply the feed-forward network, the sublayer with this index."""
        hidden = self.activation(self.widen(self._sublayer_input(index, x)))
        return self._add_residual(index, x, self.narrow(self.hidden_dropout(hidden)))

    def _sublayer_input(self, index: int, x: Tensor) -> Tensor:
        """Return the input of a sublayer, normalized for ``pre_norm``."""
        result: Tensor = self.norms[index](x) if self._pre_norm else x
        return result

    def _add_residual(self, index: int, x: Tensor, out: Tensor) -> Tensor:
        """Return the sum of a sublayer's input and output, normalized unless ``pre_norm``."""
        total = x + self.dropout(out)
        result: Tensor = total if self._pre_norm else self.norms[index](total)
        return result

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output; see the class."""
        return super().__call__(*_positional(self, args, kwargs))


class TransformerEncoderLayer(_TransformerLayer):
    """Self-attention and a feed-forward network, each with a residual connection and a normalization.

    Vaswani et al., Attention Is All You Need, NIPS 2017; with ``pre_norm`` as in Xiong et al., On Layer Normalization
    in the Transformer Architecture, ICML 2020. With ``causal=True`` it is a layer of a decoder-only network such as
    GPT-2; with ``norm="rms"``, ``activation="swiglu"``, ``rotary=True`` and ``use_bias=False`` also one of LLaMA.

    ``layer(x, mask, padding, cache)``; all except ``x`` are optional and may be passed by name:

    - ``x``: (batch, length, units), float.
    - ``mask``, ``padding``, ``cache``: as for :class:`MultiHeadAttention`.

    It returns the shape and dtype of ``x``; with a cache that and the next cache.

    Args:
        units: the number of features.
        num_heads: the number of heads, which divides ``units``.
        hidden_units: the number of features inside the feed-forward network (default: ``4 * units``).
        dropout: the probability with which a feature is dropped in training.
        activation: ``"relu"``, ``"gelu"``, ``"gelu_tanh"``, ``"silu"``, ``"glu"``, ``"swiglu"`` or ``"geglu"``; the
            last three are gated, with twice ``hidden_units`` before the gate.
        pre_norm: normalize the input of each part, not the sum after it.
        norm: ``"layer"`` for :class:`LayerNorm`, ``"rms"`` for :class:`RMSNorm`.
        epsilon: that of the normalizations.
        causal: hide later positions from each.
        rotary: as for :class:`MultiHeadAttention`.
        use_bias: add a bias in attention and in the feed-forward network.
        attention_dropout: the probability with which an attention weight is dropped (default: ``dropout``).
        hidden_dropout: the one for features inside the feed-forward network (default: ``dropout``).
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ValueError: ``num_heads`` does not divide ``units``, or an option is unknown.
        ShapeError: an input's shape does not fit (when called).

    Example:
        >>> layer = mx.gluon.nn.TransformerEncoderLayer(8, num_heads=2, activation="gelu", pre_norm=True)
        >>> layer.initialize()
        >>> layer(mx.nd.ones((3, 5, 8)), padding=mx.nd.ones((3, 5))).shape
        (3, 5, 8)
    """

    def __init__(
        self, units: int, num_heads: int, hidden_units: int | None = None, dropout: float = 0.1,
        activation: str = "relu", pre_norm: bool = False, norm: str = "layer", epsilon: float = 1e-5,
        causal: bool = False, rotary: bool | dict[str, Any] = False, use_bias: bool = True,
        attention_dropout: float | None = None, hidden_dropout: float | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            units, num_heads, hidden_units, dropout, activation, pre_norm, norm, epsilon, causal, rotary, use_bias,
            attention_dropout, hidden_dropout, 2, **kwargs,
        )  # fmt: skip

    if TYPE_CHECKING:

        @overload
        def __call__(self, x: A, mask: A | None = None, padding: A | None = None, cache: None = None) -> A: ...

        @overload
        def __call__(
            self, x: A, mask: A | None = None, padding: A | None = None, *, cache: Sequence[A]
        ) -> tuple[A, list[A]]: ...

        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def hybrid_forward(
        self,
        F: Functions,
        x: Tensor,
        mask: Tensor | None = None,
        padding: Tensor | None = None,
        cache: Sequence[Tensor] | None = None,
    ) -> Any:
        x, following = self._attend(x, mask, padding, cache)
        x = self._feed_forward(1, x)
        return x if cache is None else (x, following)


class TransformerDecoderLayer(_TransformerLayer):
    """Causal self-attention, attention to an encoder's output, and a feed-forward network.

    Vaswani et al., Attention Is All You Need, NIPS 2017.

    ``layer(x, memory, mask, padding, memory_padding, cache)``; all except the first two are optional and may be passed
    by name:

    - ``x``: (batch, length, units), float.
    - ``memory``: (batch, memory length, features), the output of the encoder.
    - ``mask``, ``padding``, ``cache``: of the self-attention, as for :class:`MultiHeadAttention`.
    - ``memory_padding``: (batch, memory length), 1 for positions of the memory, 0 for padding.

    It returns the shape and dtype of ``x``; with a cache that and the next cache.

    Args:
        units: the number of features.
        num_heads: the number of heads, which divides ``units``.
        hidden_units: as for :class:`TransformerEncoderLayer`.
        dropout: as there.
        activation: as there.
        pre_norm: as there.
        norm: as there.
        epsilon: as there.
        causal: hide later positions from each.
        rotary: as there, in the self-attention.
        use_bias: as there.
        attention_dropout: as there.
        hidden_dropout: as there.
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ValueError: ``num_heads`` does not divide ``units``, or an option is unknown.
        ShapeError: an input's shape does not fit (when called).
    """

    def __init__(
        self, units: int, num_heads: int, hidden_units: int | None = None, dropout: float = 0.1,
        activation: str = "relu", pre_norm: bool = False, norm: str = "layer", epsilon: float = 1e-5,
        causal: bool = True, rotary: bool | dict[str, Any] = False, use_bias: bool = True,
        attention_dropout: float | None = None, hidden_dropout: float | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            units, num_heads, hidden_units, dropout, activation, pre_norm, norm, epsilon, causal, rotary, use_bias,
            attention_dropout, hidden_dropout, 3, **kwargs,
        )  # fmt: skip

    if TYPE_CHECKING:

        @overload
        def __call__(
            self, x: A, memory: A, mask: A | None = None, padding: A | None = None, memory_padding: A | None = None,
            cache: None = None,
        ) -> A: ...  # fmt: skip

        @overload
        def __call__(
            self, x: A, memory: A, mask: A | None = None, padding: A | None = None, memory_padding: A | None = None,
            *, cache: Sequence[A],
        ) -> tuple[A, list[A]]: ...  # fmt: skip

        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def hybrid_forward(
        self, F: Functions, x: Tensor, memory: Tensor, mask: Tensor | None = None, padding: Tensor | None = None,
        memory_padding: Tensor | None = None,
        cache: Sequence[Tensor] | None = None,
    ) -> Any:  # fmt: skip
        x, following = self._attend(x, mask, padding, cache)
        out = self.cross_attention(self._sublayer_input(1, x), memory, padding=memory_padding)
        x = self._feed_forward(2, self._add_residual(1, x, out))
        return x if cache is None else (x, following)


class _Stack(HybridBlock):
    """The base of stacks: layers one after another, and with ``pre_norm`` a last normalization."""

    _layer: type[_TransformerLayer]

    def __init__(self, num_layers: int, units: int, num_heads: int, prefix: Any, params: Any, **options: Any) -> None:
        if num_layers < 1:
            raise ParameterError(f"{type(self).__name__}: num_layers is {num_layers}, expected 1 or more")
        super().__init__(prefix=prefix, params=params)
        with self.name_scope():
            self.layers = HybridSequential()
            for _ in range(num_layers):
                self.layers.add(self._layer(units, num_heads, **options))
            self.norm = None
            if options.get("pre_norm"):
                norm = _NORMS[options.get("norm", "layer")]
                self.norm = norm(epsilon=options.get("epsilon", 1e-5), in_channels=units)

    def begin_cache(
        self, batch_size: int, max_length: int, dtype: DTypeLike = None, ctx: Context | None = None
    ) -> list[list[NDArray]]:
        """Return an empty cache for each layer: see :meth:`MultiHeadAttention.begin_cache`."""
        layers: Any = self.layers
        return [layer.begin_cache(batch_size, max_length, dtype, ctx) for layer in layers]

    def _run(self, x: Tensor, cache: Any, *args: Any) -> Any:
        """Call all layers; ``args`` are what each takes between its input and its cache."""
        following = []
        for index, layer in enumerate(self.layers):
            if cache is None:
                x = layer(x, *args)
            else:
                x, part = layer(x, *args, cache[index])
                following.append(part)
        x = x if self.norm is None else self.norm(x)
        return x if cache is None else (x, following)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output; see the class."""
        return super().__call__(*_positional(self, args, kwargs))


class TransformerEncoder(_Stack):
    """Several layers of :class:`TransformerEncoderLayer`; with ``pre_norm`` followed by a normalization.

    Its inputs and output are those of a layer; a cache is a list with the cache of each layer.

    Args:
        num_layers: the number of layers.
        units: the number of features.
        num_heads: the number of heads, which divides ``units``.
        hidden_units: as for a layer.
        prefix: as for ``Block``.
        params: as for ``Block``.
        **options: the other arguments of the layers.

    Raises:
        ValueError: ``num_layers`` is below 1, ``num_heads`` does not divide ``units``, or an option is unknown.
        ShapeError: an input's shape does not fit (when called).
    """

    _layer = TransformerEncoderLayer

    def __init__(
        self, num_layers: int, units: int, num_heads: int, hidden_units: int | None = None, *,
        prefix: str | None = None, params: ParameterDict | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(num_layers, units, num_heads, prefix, params, hidden_units=hidden_units, **options)

    if TYPE_CHECKING:

        @overload
        def __call__(self, x: A, mask: A | None = None, padding: A | None = None, cache: None = None) -> A: ...

        @overload
        def __call__(
            self, x: A, mask: A | None = None, padding: A | None = None, *, cache: Sequence[Sequence[A]]
        ) -> tuple[A, list[list[A]]]: ...

        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def hybrid_forward(
        self,
        F: Functions,
        x: Tensor,
        mask: Tensor | None = None,
        padding: Tensor | None = None,
        cache: Sequence[Tensor] | None = None,
    ) -> Any:
        return self._run(x, cache, mask, padding)


class TransformerDecoder(_Stack):
    """Several layers of :class:`TransformerDecoderLayer`; with ``pre_norm`` followed by a normalization.

    Its inputs and output are those of a layer; a cache is a list with the cache of each layer.

    Args:
        num_layers: the number of layers.
        units: the number of features.
        num_heads: the number of heads, which divides ``units``.
        hidden_units: as for a layer.
        prefix: as for ``Block``.
        params: as for ``Block``.
        **options: the other arguments of the layers.

    Raises:
        ValueError: ``num_layers`` is below 1, ``num_heads`` does not divide ``units``, or an option is unknown.
        ShapeError: an input's shape does not fit (when called).
    """

    _layer = TransformerDecoderLayer

    def __init__(
        self, num_layers: int, units: int, num_heads: int, hidden_units: int | None = None, *,
        prefix: str | None = None, params: ParameterDict | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(num_layers, units, num_heads, prefix, params, hidden_units=hidden_units, **options)

    if TYPE_CHECKING:

        @overload
        def __call__(
            self, x: A, memory: A, mask: A | None = None, padding: A | None = None, memory_padding: A | None = None,
            cache: None = None,
        ) -> A: ...  # fmt: skip

        @overload
        def __call__(
            self, x: A, memory: A, mask: A | None = None, padding: A | None = None, memory_padding: A | None = None,
            *, cache: Sequence[Sequence[A]],
        ) -> tuple[A, list[list[A]]]: ...  # fmt: skip

        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def hybrid_forward(
        self, F: Functions, x: Tensor, memory: Tensor, mask: Tensor | None = None, padding: Tensor | None = None,
        memory_padding: Tensor | None = None,
        cache: Sequence[Tensor] | None = None,
    ) -> Any:  # fmt: skip
        return self._run(x, cache, memory, mask, padding, memory_padding)


def _positional(block: HybridBlock, args: tuple[object, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the arguments of a call by position, without None at the end.

    Raises:
        TypeError: an argument is unknown, missing or passed twice.
    """
    names: tuple[str, ...] = ("x", "memory", "mask", "padding", "memory_padding", "cache")
    if isinstance(block, (TransformerEncoderLayer, TransformerEncoder)):
        names = ("x", "mask", "padding", "cache")
    wrong = [name for name in kwargs if name not in names[len(args) :]]
    values = dict(zip(names, args, strict=False)) | kwargs
    missing = [name for name in names[: names.index("mask")] if values.get(name) is None]
    if wrong or missing or len(args) > len(names):
        problem = f"{wrong[0]!r} is unknown or passed twice" if wrong else f"{len(args)} by position"
        problem = f"{missing[0]!r} is missing" if missing else problem
        raise TypeError(f"{type(block).__name__}: {problem}, expected the arguments {', '.join(names)}")
    ordered = [values.get(name) for name in names]
    while ordered[-1] is None:
        ordered.pop()
    return ordered
