"""Vision Transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, overload

from flowmx.gluon import nn
from flowmx.gluon.base_block import A
from flowmx.gluon.hybrid import HybridBlock, Layer
from flowmx.gluon.model_zoo.calls import Unpooled
from flowmx.gluon.nn.positions import first_place
from flowmx.gluon.parameter_dict import ParameterDict
from flowmx.initializer import Normal
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = ["ViT", "ViTClassifier"]


class ViT(HybridBlock, Generic[Unpooled]):
    """The Vision Transformer (Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021).

    It takes images, (batch, channels, image_size, image_size), and returns the features of each place, (batch, 1 +
    number of patches, units): first those of the image, then those of the patches, row by row. With ``pooler`` it also
    returns the pooled features of the image, (batch, units).

    Args:
        image_size: the height and width of an image, a multiple of ``patch_size``.
        patch_size: the height and width of a patch.
        channels: the number of channels of an image.
        units: the number of features.
        num_layers: the number of layers.
        num_heads: the number of heads, which divides ``units``.
        hidden_units: the number of features inside a feed-forward network (default: ``4 * units``).
        dropout: the probability with which a feature is dropped in training.
        attention_dropout: the probability with which an attention weight is dropped.
        activation: that of the feed-forward networks; see :class:`~flowmx.gluon.nn.TransformerEncoderLayer`.
        epsilon: that of the normalizations.
        pooler: compute pooled features, by a dense layer and tanh.
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ValueError: ``num_heads`` does not divide ``units``, ``patch_size`` does not divide ``image_size``, or an option
            is unknown.
        ShapeError: the images have another size (when called).
    """

    @overload
    def __init__(
        self: ViT[Literal[False]], image_size: int = 224, patch_size: int = 16, channels: int = 3, units: int = 768,
        num_layers: int = 12, num_heads: int = 12, hidden_units: int | None = None, dropout: float = 0.0,
        attention_dropout: float = 0.0, activation: str = "gelu", epsilon: float = 1e-12,
        pooler: Literal[False] = False, **kwargs: Any,
    ) -> None: ...  # fmt: skip

    @overload
    def __init__(self: ViT[Literal[True]], image_size: int = ..., *, pooler: Literal[True], **options: Any) -> None: ...

    @overload
    def __init__(self: ViT[bool], image_size: int = ..., *, pooler: bool, **options: Any) -> None: ...

    def __init__(
        self, image_size: int = 224, patch_size: int = 16, channels: int = 3, units: int = 768, num_layers: int = 12,
        num_heads: int = 12, hidden_units: int | None = None, dropout: float = 0.0, attention_dropout: float = 0.0,
        activation: str = "gelu", epsilon: float = 1e-12, pooler: bool = False, **kwargs: Any,
    ) -> None:  # fmt: skip
        if patch_size < 1 or image_size < 1 or image_size % patch_size:
            raise ValueError(
                f"ViT: image_size is {image_size} and patch_size {patch_size}, expected a multiple of the patch size"
            )
        super().__init__(**kwargs)
        with self.name_scope():
            self.patches = nn.Conv2D(units, patch_size, patch_size, in_channels=channels)
            self.token = self.params.get("token", shape=(1, 1, units), init=Normal(0.02))
            self.positions = nn.LearnedPositions(1 + (image_size // patch_size) ** 2, units)
            self.dropout = nn.Dropout(dropout)
            self.encoder = nn.TransformerEncoder(
                num_layers, units, num_heads, hidden_units, dropout=dropout, attention_dropout=attention_dropout,
                hidden_dropout=0.0, activation=activation, pre_norm=True, epsilon=epsilon,
            )  # fmt: skip
            self.pooler = None
            if pooler:
                self.pooler = nn.Dense(units, activation="tanh", in_units=units)

    if TYPE_CHECKING:

        @overload
        def __call__(self: ViT[Literal[False]], x: A, /) -> A: ...

        @overload
        def __call__(self: ViT[Literal[True]], x: A, /) -> tuple[A, A]: ...

        @overload
        def __call__(self: ViT[bool], x: A, /) -> A | tuple[A, A]: ...

        def __call__(self, x: Any, /) -> Any: ...

    def hybrid_forward(self, F: Functions, x: Tensor, *, token: Any) -> Any:
        patches = F.transpose(F.Reshape(self.patches(x), shape=(0, 0, -3)), axes=(0, 2, 1))
        token = F.broadcast_like(token, F.slice_axis(patches, axis=1, begin=0, end=1))
        x = self.encoder(self.dropout(self.positions(F.concat(token, patches, dim=1))))
        return x if self.pooler is None else (x, self.pooler(first_place(F, x)))


class ViTClassifier(Layer):
    """A Vision Transformer with a layer for classes of images: (batch, classes) of images as for :class:`ViT`.

    Args:
        classes: the number of classes.
        prefix: as for ``Block``.
        params: as for ``Block``.
        **options: arguments of :class:`ViT`.

    Example:
        >>> net = mx.gluon.model_zoo.vision.ViTClassifier(10, image_size=32, units=8, num_layers=2, num_heads=2)
        >>> net.initialize(mx.init.Normal(0.02))
        >>> net(mx.nd.ones((1, 3, 32, 32))).shape
        (1, 10)
    """

    def __init__(
        self, classes: int = 1000, prefix: str | None = None, params: ParameterDict | None = None, **options: Any
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        with self.name_scope():
            self.vit = ViT(pooler=False, **options)
            self.output = nn.Dense(classes, in_units=options.get("units", 768))

    def hybrid_forward(self, F: Functions, x: Tensor) -> Tensor:
        return self.output(first_place(F, self.vit(x)))
