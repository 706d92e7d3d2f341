"""gluoncv 0.10.5: networks of every family, detection, segmentation and pose, with targets and losses."""

import mxnet as mx
from filling import fill, flat, trained, values

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


def network(name):
    """A network at a small batch, in prediction and training."""

    def run():
        from gluoncv.model_zoo import get_model

        mx.random.seed(0)
        net = get_model(name, pretrained=False, **({"classes": 10} if "cifar" in name else {}))
        net.initialize(mx.init.Zero())
        size = 32 if "cifar" in name else SIZES.get(name, 64)
        x = mx.nd.array(values("x", (2, 3, size, size)))
        fill(net, [x])
        return trained(net, [x])

    return run


def detector(name, size, **given):
    """A detector's predictions."""

    def run():
        from gluoncv.model_zoo import get_model

        net = get_model(name, pretrained=False, pretrained_base=False, **given)
        net.initialize(mx.init.Zero())
        x = mx.nd.array(values("x", (1, 3, size, size)))
        fill(net, [x])
        found = flat(net(x), "imperative")
        net.hybridize()
        found.update(flat(net(x), "hybridized"))
        return found

    return run


def ssd_loss():
    """SSD's targets and its loss with hard negatives, with gradients."""
    from gluoncv.loss import SSDMultiBoxLoss
    from gluoncv.model_zoo.ssd.target import SSDTargetGenerator

    anchors = mx.nd.array([*abs(values("anchors", (1, 100, 4), 0.3)), [0.1, 0.1, 0.5, 0.5]])
    scores, boxes = mx.nd.array(values("scores", (2, 100, 6))), mx.nd.array(values("boxes", (2, 100, 4)))
    truth = mx.nd.array([[[0.1, 0.1, 0.5, 0.6]], [[0.3, 0.2, 0.8, 0.7]]])
    labels = mx.nd.array([[[1]], [[3]]])
    target = SSDTargetGenerator(negative_mining_ratio=-1)(anchors, None, truth, labels)
    scores.attach_grad()
    boxes.attach_grad()
    with mx.autograd.record():
        total, classes, places = SSDMultiBoxLoss()(scores, boxes, target[0], target[1])
        mx.nd.add_n(*total).backward()
    return flat([list(target), classes, places, scores.grad, boxes.grad])


def yolo_training():
    """YOLO's forward in training: targets, losses and gradients of each."""
    from gluoncv.data.transforms.presets.yolo import YOLO3DefaultTrainTransform
    from gluoncv.model_zoo import get_model

    net = get_model("yolo3_mobilenet0.25_coco", pretrained=False, pretrained_base=False)
    net.initialize(mx.init.Zero())
    x = mx.nd.array(values("x", (1, 3, 96, 96)))
    fill(net, [x])
    transform = YOLO3DefaultTrainTransform(96, 96, net)
    truth = mx.nd.array([[[10.0, 12, 50, 60], [30, 20, 80, 90]]])
    targets = transform._target_generator(
        transform._fake_x,
        transform._feat_maps,
        transform._anchors,
        transform._offsets,
        truth,
        mx.nd.array([[[1], [4]]]),
        None,
    )
    with mx.autograd.record():
        losses = net(x, truth, *targets)
        mx.nd.add_n(*[each.sum() for each in losses]).backward()
    gradients = [p.grad() for p in list(net.collect_params().values())[::9] if p.grad_req != "null"]
    return flat(list(losses), "loss") | flat(gradients, "gradient")


def rcnn_targets():
    """The targets that Faster-RCNN learns: classes and boxes of proposals, and of the anchors before them."""
    from gluoncv.model_zoo.rcnn.faster_rcnn.rcnn_target import RCNNTargetGenerator
    from gluoncv.model_zoo.rcnn.rpn.rpn_target import RPNTargetGenerator

    boxes = mx.nd.array([[[4.0, 4, 40, 44], [20, 20, 90, 80]]])
    rois = mx.nd.concat(boxes, mx.nd.array([*abs(values("rois", (1, 30, 4), 50)), [0, 0, 45, 45]]), dim=1)
    samples, matches = mx.nd.array([[1, -1] * 8 + [0] * 16]), mx.nd.array([[0, 1] * 16])
    generator = RCNNTargetGenerator(3, 16, 1)
    generator.initialize()
    targets = generator(rois, samples, matches, mx.nd.array([[[0], [2]]]), boxes)
    anchors = mx.nd.array([*abs(values("anchors", (64, 4), 40)), [0, 0, 50, 50]])
    rpn = RPNTargetGenerator(num_sample=1000, pos_ratio=1.0)(boxes[0], anchors, 128, 128)
    return flat([list(targets), list(rpn)])


CASES = {name: network(name) for name in FAMILIES} | {
    "ssd_300_vgg16_atrous_voc": detector("ssd_300_vgg16_atrous_voc", 300),
    "ssd_512_mobilenet1.0_voc": detector("ssd_512_mobilenet1.0_voc", 512),
    "yolo3_mobilenet0.25_voc": detector("yolo3_mobilenet0.25_voc", 96),
    "center_net_resnet18_v1b_voc": detector("center_net_resnet18_v1b_voc", 128),
    "fcn_resnet50_ade": detector("fcn_resnet50_ade", 480),
    "simple_pose_resnet18_v1b": detector("simple_pose_resnet18_v1b", 128),
    "SSD's loss": ssd_loss, "YOLO's training": yolo_training, "RCNN's targets": rcnn_targets,
}  # fmt: skip
