"""gluoncv 0.10.5: networks of every family."""

import mxnet as mx
from filling import fill, trained, values

FAMILIES = [
    "alexnet", "vgg11_bn", "squeezenet1.1", "densenet121", "resnet18_v1", "resnet18_v2", "resnet18_v1b",
    "resnet50_v1b_gn", "resnet50_v1c", "resnet50_v1d", "resnet50_v1e", "resnet50_v1s", "se_resnet18_v1",
    "se_resnet18_v2",
    "mobilenet0.25", "mobilenetv2_0.25", "mobilenetv3_small", "mobilenetv3_large", "resnext50_32x4d",
    "se_resnext50_32x4d", "senet_154", "cifar_resnet20_v1", "cifar_resnet20_v2", "cifar_wideresnet16_10",
    "cifar_resnext29_32x4d", "cifar_residualattentionnet56", "darknet53", "xception", "googlenet",
    "hrnet_w18_small_v1_c",
    "nasnet_4_1056", "resnest14", "dla34", "inceptionv3",
]  # fmt: skip
"""One network of each family."""

SIZES = dict.fromkeys(
    ["alexnet", "vgg11_bn", "densenet121", "hrnet_w18_small_v1_c", "senet_154", "squeezenet1.1"], 224
) | {"inceptionv3": 299, "xception": 128, "nasnet_4_1056": 224, "googlenet": 224}  # fmt: skip
"""Pictures' heights, where 64 is too small."""


def network_of(name):
    """A network with the values of both systems, and a small batch of pictures."""
    from gluoncv.model_zoo import get_model

    net = get_model(name, pretrained=False, **({"classes": 10} if "cifar" in name else {}))
    net.initialize(mx.init.Zero())
    size = 32 if "cifar" in name else SIZES.get(name, 64)
    x = mx.nd.array(values("x", (2, 3, size, size)))
    fill(net, [x])
    return net, x


def network(name):
    """A network in prediction and training."""

    def run():
        net, x = network_of(name)
        return trained(net, [x])

    return run


CASES = {name: network(name) for name in FAMILIES}
