"""gluoncv 0.10.5: detection, segmentation and pose: predictions, targets, and losses with their gradients."""

import contextlib

import mxnet as mx
import numpy as np
from filling import fill, flat, trained, values

CLASSES = ["cat", "dog", "bird"]

BOXES = [[4.0, 4, 40, 44], [20, 20, 90, 80]]
"""Two objects in a picture of 96 x 96, by their corners."""

LABELS = [[0.0], [2]]
"""Which classes they are of."""


def picture(size, batch=1):
    return mx.nd.array(values("x", (batch, 3, size, size)))


def filled(net, *inputs):
    """A network with the values of both systems."""
    net.initialize(mx.init.Zero(), force_reinit=True)
    fill(net, inputs)
    return net


def detector(name, size, **options):
    """A detector's predictions."""

    def run():
        from gluoncv.model_zoo import get_model

        x = picture(size)
        net = filled(get_model(name, pretrained=False, pretrained_base=False, **options), x)
        outputs = flat(net(x), "imperative")
        net.hybridize()
        return outputs | flat(net(x), "hybridized")

    return run


# SSD


def ssd_targets():
    """The targets of SSD from given anchors, with and without hard negatives, and the loss with its gradients."""
    from gluoncv.loss import SSDMultiBoxLoss
    from gluoncv.model_zoo.ssd.target import SSDTargetGenerator

    truth, labels = mx.nd.array([BOXES, [BOXES[1], [-1] * 4]]) / 96, mx.nd.array([LABELS, [[1], [-1]]])
    centers = np.random.RandomState(0).uniform(0.2, 0.6, (1, 200, 4)).astype("float32")
    centers[0, :2] = [[0.23, 0.25, 0.37, 0.42], [0.57, 0.52, 0.73, 0.62]]
    anchors = mx.nd.array(centers)
    scores, boxes = mx.nd.array(values("scores", (2, 200, 4))), mx.nd.array(values("boxes", (2, 200, 4)))
    target = SSDTargetGenerator(negative_mining_ratio=-1)(anchors, None, truth, labels)
    mined = SSDTargetGenerator(negative_mining_ratio=3)(anchors, scores, truth, labels)
    scores.attach_grad()
    boxes.attach_grad()
    with mx.autograd.record():
        total, classes, places = SSDMultiBoxLoss()(scores, boxes, target[0], target[1])
        mx.nd.add_n(*total).backward()
    return flat({"target": target, "mined": mined, "losses": [classes, places], "gradient": [scores.grad, boxes.grad]})


def ssd_training():
    """SSD in training, with its targets and its loss."""
    from gluoncv.loss import SSDMultiBoxLoss
    from gluoncv.model_zoo import SSD, mobilenet0_25
    from gluoncv.model_zoo.ssd.target import SSDTargetGenerator

    def body(**_):
        """Features at three scales, out of layers of Gluon."""
        return Branches(mobilenet0_25().features)

    class Branches(mx.gluon.HybridBlock):
        def __init__(self, layers):
            super().__init__()
            with self.name_scope():
                self.parts = [layers[:33], layers[33:57], layers[57:69]]
                for part in self.parts:
                    self.register_child(part)

        def hybrid_forward(self, F, x):
            results = []
            for part in self.parts:
                x = part(x)
                results.append(x)
            return results

    def loss(outputs):
        scores, boxes, anchors = outputs
        with mx.autograd.pause():
            truth, labels = mx.nd.array([BOXES, BOXES[::-1]]) / 96, mx.nd.array([LABELS, LABELS])
            target = SSDTargetGenerator(negative_mining_ratio=-1)(anchors, None, truth, labels)
        return SSDMultiBoxLoss()(scores, boxes, target[0], target[1])[0][0].sum()

    x = picture(96, 2)
    ratios = [[1, 2, 0.5]] * 3
    net = SSD(None, 96, body, None, [10, 30, 60, 90], ratios, [8, 16, 32], CLASSES, anchor_alloc_size=32)
    return trained(filled(net, x), [x], loss)


# YOLO


def yolo_training():
    """YOLO in training: its targets, losses and gradients."""
    from gluoncv.data.transforms.presets.yolo import YOLO3DefaultTrainTransform
    from gluoncv.model_zoo import get_model

    x, truth = picture(96), mx.nd.array([BOXES])
    net = filled(get_model("yolo3_mobilenet0.25_coco", pretrained=False, pretrained_base=False), x)
    transform = YOLO3DefaultTrainTransform(96, 96, net)
    targets = transform._target_generator(
        transform._fake_x, transform._feat_maps, transform._anchors, transform._offsets, truth, mx.nd.array([LABELS]),
        None,
    )  # fmt: skip
    fill(net)  # the transform runs the network in training mode, which moves BatchNorm's averages (docs/migration.md)
    results = trained(net, [x], lambda losses: sum(each.sum() for each in losses), [truth, *targets])
    return flat(list(targets), "target") | results


# CenterNet


def center_training():
    """CenterNet in training: its heatmaps, losses and gradients."""
    from gluoncv.loss import HeatmapFocalLoss, MaskedL1Loss
    from gluoncv.model_zoo import get_model
    from gluoncv.model_zoo.center_net.target_generator import CenterNetTargetGenerator

    x = picture(96)
    net = filled(get_model("center_net_resnet18_v1b_voc", pretrained=False, pretrained_base=False), x)
    targets = CenterNetTargetGenerator(20, 24, 24)(np.array(BOXES) / 4, np.array(LABELS))
    heat, extents, mask, centers, center_mask = (each.expand_dims(0) for each in targets)

    def loss(outputs):
        return (
            HeatmapFocalLoss(from_logits=True)(outputs[0], heat)
            + MaskedL1Loss(weight=0.1)(outputs[1], extents, mask)
            + MaskedL1Loss(weight=1.0)(outputs[2], centers, center_mask)
        ).sum()

    return flat(list(targets), "target") | trained(net, [x], loss)


# Faster R-CNN and Mask R-CNN


@contextlib.contextmanager
def deterministic():
    """Make both systems deterministic where MXNet is not.

    This covers the random shuffle of proposals, and the uninitialized memory that ROIAlign returns for a region of no
    image.
    """
    originals = [(F, F.random.uniform, F.contrib.ROIAlign) for F in (mx.nd, mx.sym)]
    for F, _, align in originals:
        F.random.uniform = lambda low, high, shape, F=F: F.sin(F.arange(shape[0]) * 12.9898)
        F.contrib.ROIAlign = lambda *args, F=F, align=align, **options: _cleared(F, args[1], align(*args, **options))
    try:
        yield
    finally:
        for F, uniform, align in originals:
            F.random.uniform, F.contrib.ROIAlign = uniform, align


def _cleared(F, regions, pooled):
    """Return the pooled features, with zeros for regions of no picture."""
    of_picture = F.slice_axis(regions, axis=-1, begin=0, end=1).reshape((-1,)) >= 0
    return F.where(of_picture, pooled, F.zeros_like(pooled))


def rpn_targets(anchors, size):
    """Return the targets of the network of proposals for anchors by their corners: classes, boxes and masks."""
    from gluoncv.model_zoo.rcnn.rpn.rpn_target import RPNTargetGenerator

    targets = RPNTargetGenerator(num_sample=1000, pos_ratio=1.0)(mx.nd.array(BOXES), anchors, size, size)
    return [mx.nd.array(each) for each in targets]


def rcnn_targets():
    """The targets of proposals, and of the anchors before them.

    These are at most 16: of more than that MXNet does not sort equal values in their order (docs/migration.md).
    """
    from gluoncv.model_zoo.rcnn.faster_rcnn.rcnn_target import RCNNTargetGenerator, RCNNTargetSampler
    from gluoncv.model_zoo.rcnn.mask_rcnn.rcnn_target import MaskTargetGenerator

    boxes, labels = mx.nd.array([BOXES]), mx.nd.array([LABELS])
    corners = np.sort(np.random.RandomState(0).uniform(0, 96, (14, 2, 2)), axis=1).reshape(14, 4).astype("float32")
    corners[:2] = [[5, 5, 41, 42], [22, 20, 85, 80]]
    anchors, results = mx.nd.array(corners), {}
    generator = RCNNTargetGenerator(3, 4, 1)
    generator.initialize()
    masks = mx.nd.array((values("masks", (1, 2, 96, 96)) > 0).astype("float32"))
    scores = mx.nd.array(abs(values("scores", (1, 14, 1))))
    sampler = RCNNTargetSampler(1, 14, 16, 0.5, 0.25, 2)
    for mode in ("imperative", "hybridized"):
        mask_generator = MaskTargetGenerator(1, 16, 3, (14, 14))
        for each in (sampler, generator, mask_generator):
            each.hybridize(mode == "hybridized")
        with deterministic():
            rois, samples, matches = sampler(anchors.expand_dims(0), scores, boxes)
        targets = generator(rois, samples, matches, labels, boxes)
        results[mode] = [rois, samples, matches, list(targets), mask_generator(rois, masks, matches, targets[0])]
    return flat(results | {"rpn": rpn_targets(anchors, 96)})


def faster_rcnn():
    """Faster R-CNN in training: proposals, samples, losses and gradients; and its predictions."""
    from gluoncv.model_zoo import FasterRCNN

    body = _body()
    features, top = mx.gluon.nn.HybridSequential(), mx.gluon.nn.HybridSequential()
    features.add(body.conv1, body.bn1, body.relu, body.maxpool, body.layer1, body.layer2, body.layer3)
    top.add(body.layer4)
    return _rcnn(FasterRCNN(features, top, CLASSES, roi_size=(14, 14), strides=16, scales=(1, 2, 4), **SMALL))


def mask_rcnn():
    """Mask R-CNN over a pyramid of features in training: proposals, samples, losses and gradients; its predictions."""
    from gluoncv.model_zoo import MaskRCNN
    from gluoncv.nn.feature import FPNFeatureExpander

    outputs = [f"layers{layer}_relu3_fwd" for layer in (1, 2, 3, 4)]
    features = FPNFeatureExpander(
        _body(), outputs, [32] * 4, use_1x1=True, use_upsample=True, use_elewadd=True, use_p6=True, no_bias=False,
        pretrained=False,
    )  # fmt: skip
    head = mx.gluon.nn.HybridSequential()
    head.add(mx.gluon.nn.Dense(32), mx.gluon.nn.Activation("relu"))
    net = MaskRCNN(
        features, None, CLASSES, box_features=head, mask_channels=16, rcnn_max_dets=10, rpn_test_pre_nms=100,
        min_stage=2, max_stage=6, roi_size=(7, 7), strides=(4, 8, 16, 32, 64), scales=(2, 4, 8, 16, 32),
        target_roi_scale=2, num_fcn_convs=2, **SMALL,
    )  # fmt: skip
    return _rcnn(net)


SMALL = {
    "base_size": 16, "ratios": (0.5, 1, 2), "alloc_size": (32, 32), "rpn_channel": 32, "roi_mode": "align",
    "rpn_train_pre_nms": 200, "rpn_train_post_nms": 14, "rpn_test_post_nms": 20, "rpn_min_size": 2, "num_sample": 16,
    "pos_ratio": 0.25, "max_num_gt": 2, "nms_topk": 50, "post_nms": 20,
}  # fmt: skip
"""Few proposals, for a small picture."""


def _body():
    from gluoncv.model_zoo import get_model

    return get_model("resnet18_v1b", pretrained=False, dilated=False, use_global_stats=True)


def _rcnn(net):
    """A network in training by the losses of its proposals and of its classes, boxes and masks."""
    x, boxes, labels = picture(96), mx.nd.array([BOXES]), mx.nd.array([LABELS])
    net.initialize(mx.init.Zero())
    assert net.target_generator, "made when it is first asked for"
    net.collect_params().initialize(mx.init.Zero())
    with mx.autograd.train_mode():
        net(x, boxes, labels)
    fill(net)
    masks = mx.nd.array((values("masks", (1, 2, 96, 96)) > 0).astype("float32"))
    masked = hasattr(net, "mask")
    cross, huber = mx.gluon.loss.SigmoidBinaryCrossEntropyLoss, mx.gluon.loss.HuberLoss

    def loss(outputs):
        classes, places, *shapes = outputs[: 3 if masked else 2]
        rois, _, matches, scores, moves, anchors, wanted, targets, weights, indices = outputs[len(shapes) + 2 :]
        with mx.autograd.pause():
            corners = [each.reshape((-1, 4)) for each in (anchors if masked else [anchors])]
            of_scores, of_moves, moving = rpn_targets(mx.nd.concat(*corners, dim=0), 96)
        total = cross()(scores.reshape((1, -1)), of_scores.reshape((1, -1)), (of_scores >= 0).reshape((1, -1))).sum()
        total = total + huber(rho=1 / 9)(moves, of_moves.expand_dims(0), moving.expand_dims(0)).sum()
        total = total + mx.gluon.loss.SoftmaxCrossEntropyLoss()(classes, wanted, wanted.expand_dims(-1) >= 0).sum()
        total = total + huber()(places, targets, weights).sum()
        if masked:
            with mx.autograd.pause():
                of_mask = [mx.nd.take(each[0], indices[0]).expand_dims(0) for each in (rois, matches, wanted)]
                drawn = net.mask_target(of_mask[0], masks, of_mask[1], of_mask[2])
            total = total + cross()(shapes[0], *drawn).sum()
        return total

    with deterministic():
        return trained(net, [x], loss, [boxes, labels])


# Segmentation


def segmentation(name, **options):
    """A network of segmentation in training, with its loss over all its outputs."""

    def run():
        from gluoncv.loss import MixSoftmaxCrossEntropyLoss
        from gluoncv.model_zoo import get_model

        x = picture(64)
        label = mx.nd.array(np.random.RandomState(0).randint(-1, 21, (1, 64, 64)))
        net = filled(get_model(name, pretrained=False, pretrained_base=False, crop_size=64, base_size=64, **options), x)
        criterion = MixSoftmaxCrossEntropyLoss(aux=True)
        return trained(net, [x], lambda outputs: criterion(*outputs, label).sum())

    return run


def segmentation_losses():
    """All losses of segmentation, with their gradients; they ask arrays for dtypes, so that none can be hybridized."""
    from gluoncv import loss as losses

    label = mx.nd.array(np.random.RandomState(0).randint(-1, 5, (2, 16, 16)))
    plain = [(2, 5, 16, 16)] * 3
    cases = {
        "mixed": (losses.MixSoftmaxCrossEntropyLoss(aux=True), plain[:2]),
        "plain": (losses.MixSoftmaxCrossEntropyLoss(aux=False), plain[:1]),
        "of three": (losses.SegmentationMultiLosses(), plain),
        "of ICNet": (losses.ICNetLoss(crop_size=16), [(2, 5, side, side) for side in (16, 4, 2, 1)]),
        "focal": (losses.FocalLoss(axis=-1, num_class=5), [(2, 16, 16, 5)]),
    }
    results = {}
    for name, (criterion, shapes) in cases.items():
        predicted = [mx.nd.array(values(f"{name} {place}", shape, 3)) for place, shape in enumerate(shapes)]
        for each in predicted:
            each.attach_grad()
        with mx.autograd.record():
            total = criterion(*predicted, label)
        total.backward()
        results.update(flat({"loss": total, "gradient": [each.grad for each in predicted]}, name))
    return results


CASES = {
    "SSD's targets": ssd_targets, "R-CNN's targets": rcnn_targets, "losses of segmentation": segmentation_losses,
    "SSD": ssd_training, "YOLO": yolo_training, "CenterNet": center_training, "Faster R-CNN": faster_rcnn,
    "Mask R-CNN": mask_rcnn,
    "fcn_resnet50_voc": segmentation("fcn_resnet50_voc"),
    "psp_resnet50_ade": segmentation("psp_resnet50_ade"),
    "deeplab_resnet50_ade": segmentation("deeplab_resnet50_ade"),
    "ssd_300_vgg16_atrous_voc": detector("ssd_300_vgg16_atrous_voc", 300),
    "ssd_512_mobilenet1.0_voc": detector("ssd_512_mobilenet1.0_voc", 512),
    "yolo3_mobilenet0.25_voc": detector("yolo3_mobilenet0.25_voc", 96),
    "center_net_resnet18_v1b_voc": detector("center_net_resnet18_v1b_voc", 128),
    "fcn_resnet50_ade": detector("fcn_resnet50_ade", 480),
    "simple_pose_resnet18_v1b": detector("simple_pose_resnet18_v1b", 128),
}  # fmt: skip
