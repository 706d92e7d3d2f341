"""Image models: ``mx.gluon.model_zoo.vision``. Each is a block, with functions for its standard sizes.

Example:
    >>> net = mx.gluon.model_zoo.vision.resnet18_v1(pretrained=True, root="weights")
    >>> net = mx.gluon.model_zoo.vision.get_model("mobilenetv2_0.5", classes=10)
"""

from collections.abc import Callable
from typing import Any

from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.model_zoo.vision import densenet, inception, mobilenet, resnet, squeezenet, vgg
from flowmx.gluon.model_zoo.vision.alexnet import AlexNet, alexnet
from flowmx.gluon.model_zoo.vision.densenet import (
    DenseNet,
    densenet121,
    densenet161,
    densenet169,
    densenet201,
    get_densenet,
)
from flowmx.gluon.model_zoo.vision.inception import Inception3, inception_v3
from flowmx.gluon.model_zoo.vision.mobilenet import (
    MobileNet,
    MobileNetV2,
    get_mobilenet,
    get_mobilenet_v2,
    mobilenet0_5,
    mobilenet0_25,
    mobilenet0_75,
    mobilenet1_0,
    mobilenet_v2_0_5,
    mobilenet_v2_0_25,
    mobilenet_v2_0_75,
    mobilenet_v2_1_0,
)
from flowmx.gluon.model_zoo.vision.resnet import (
    BasicBlockV1,
    BasicBlockV2,
    BottleneckV1,
    BottleneckV2,
    ResNetV1,
    ResNetV2,
    get_resnet,
    resnet18_v1,
    resnet18_v2,
    resnet34_v1,
    resnet34_v2,
    resnet50_v1,
    resnet50_v2,
    resnet101_v1,
    resnet101_v2,
    resnet152_v1,
    resnet152_v2,
)
from flowmx.gluon.model_zoo.vision.squeezenet import SqueezeNet, get_squeezenet, squeezenet1_0, squeezenet1_1
from flowmx.gluon.model_zoo.vision.vgg import (
    VGG,
    get_vgg,
    vgg11,
    vgg11_bn,
    vgg13,
    vgg13_bn,
    vgg16,
    vgg16_bn,
    vgg19,
    vgg19_bn,
)
from flowmx.gluon.model_zoo.vision.vit import ViT, ViTClassifier
from flowmx.suggestions import did_you_mean

__all__ = [
    "VGG",
    "AlexNet",
    "BasicBlockV1",
    "BasicBlockV2",
    "BottleneckV1",
    "BottleneckV2",
    "DenseNet",
    "Inception3",
    "MobileNet",
    "MobileNetV2",
    "ResNetV1",
    "ResNetV2",
    "SqueezeNet",
    "ViT",
    "ViTClassifier",
    "alexnet",
    "densenet",
    "densenet121",
    "densenet161",
    "densenet169",
    "densenet201",
    "get_densenet",
    "get_mobilenet",
    "get_mobilenet_v2",
    "get_model",
    "get_resnet",
    "get_squeezenet",
    "get_vgg",
    "inception",
    "inception_v3",
    "mobilenet",
    "mobilenet0_5",
    "mobilenet0_25",
    "mobilenet0_75",
    "mobilenet1_0",
    "mobilenet_v2_0_5",
    "mobilenet_v2_0_25",
    "mobilenet_v2_0_75",
    "mobilenet_v2_1_0",
    "resnet",
    "resnet18_v1",
    "resnet18_v2",
    "resnet34_v1",
    "resnet34_v2",
    "resnet50_v1",
    "resnet50_v2",
    "resnet101_v1",
    "resnet101_v2",
    "resnet152_v1",
    "resnet152_v2",
    "squeezenet",
    "squeezenet1_0",
    "squeezenet1_1",
    "vgg",
    "vgg11",
    "vgg11_bn",
    "vgg13",
    "vgg13_bn",
    "vgg16",
    "vgg16_bn",
    "vgg19",
    "vgg19_bn",
]  # fmt: skip

_MODELS: dict[str, Callable[..., HybridBlock]] = {
    **{function.__name__: function for function in (
        resnet18_v1, resnet34_v1, resnet50_v1, resnet101_v1, resnet152_v1, resnet18_v2, resnet34_v2, resnet50_v2,
        resnet101_v2, resnet152_v2, vgg11, vgg13, vgg16, vgg19, vgg11_bn, vgg13_bn, vgg16_bn, vgg19_bn, alexnet,
        densenet121, densenet161, densenet169, densenet201,
    )},
    "squeezenet1.0": squeezenet1_0, "squeezenet1.1": squeezenet1_1, "inceptionv3": inception_v3,
    "mobilenet1.0": mobilenet1_0, "mobilenet0.75": mobilenet0_75, "mobilenet0.5": mobilenet0_5,
    "mobilenet0.25": mobilenet0_25, "mobilenetv2_1.0": mobilenet_v2_1_0, "mobilenetv2_0.75": mobilenet_v2_0_75,
    "mobilenetv2_0.5": mobilenet_v2_0_5, "mobilenetv2_0.25": mobilenet_v2_0_25,
}  # fmt: skip


MODEL_NAMES = frozenset(_MODELS)
"""The names of :func:`get_model`."""


def get_model(name: str, **kwargs: Any) -> HybridBlock:
    """Return a model by its name.

    Args:
        name: the name, such as ``"resnet50_v1"``.
        **kwargs: ``pretrained``: load the weights that MXNet published, downloading them if needed (default:
            False); ``ctx``: their device or devices; ``root``: the folder of the file (default: ``models`` in the
            setting ``home``); and arguments of the model, such as ``classes``.

    Raises:
        ValueError: the name is unknown.
        FileNotFoundError: the file of the weights is missing and cannot be downloaded.
    """
    make = _MODELS.get(name.lower())
    if make is None:
        raise ValueError(
            f"there is no model {name!r}, only {', '.join(sorted(_MODELS))}{did_you_mean(name, sorted(_MODELS))}"
        )
    return make(**kwargs)
