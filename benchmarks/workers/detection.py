"""Milliseconds of detection operators (run by turns.py)."""

import importlib
import json
import sys
import time

import numpy as np

CHANCE = np.random.default_rng(0)


def boxes(examples, count, spread, classes):
    """Return rows of a class, a score and corners, within a square of side ``spread``."""
    center, sides = CHANCE.uniform(0, spread, (examples, count, 2)), CHANCE.uniform(1, 100, (examples, count, 2))
    kinds, scores = CHANCE.integers(0, classes, (examples, count, 1)), CHANCE.uniform(0, 1, (examples, count, 1))
    return np.concatenate([kinds, scores, center - sides / 2, center + sides / 2], -1)


def suppression(mx):
    """Calls of box_nms, by name."""
    for count, examples, spread, classes in (
        (1000, 1, 200, 1), (1000, 1, 2000, 1), (1000, 8, 1000, 20), (5000, 1, 500, 1), (5000, 1, 2000, 20),
    ):  # fmt: skip
        data = mx.nd.array(boxes(examples, count, spread, classes), dtype="float32")
        for threshold in (0.3, 0.7):
            params = {"overlap_thresh": threshold, "id_index": 0 if classes > 1 else -1}
            yield (
                f"box_nms {count} x{examples}, {spread} wide, {classes} classes, {threshold}",
                lambda data=data, params=params: mx.nd.contrib.box_nms(data, **params).wait_to_read(),
            )


def predictions(mx):
    """Calls of MultiBoxDetection, by name."""
    for count, examples, classes, threshold in (
        (1000, 1, 21, 0.01),
        (1000, 8, 21, 0.1),
        (5000, 1, 21, 0.1),
        (5000, 1, 2, 0.01),
    ):
        probability = CHANCE.dirichlet(np.full(classes, 0.3), (examples, count)).transpose(0, 2, 1)
        center, sides = CHANCE.uniform(0, 1, (count, 2)), CHANCE.uniform(0.02, 0.2, (count, 2))
        anchors = np.concatenate([center - sides / 2, center + sides / 2], -1)[None]
        offsets = CHANCE.standard_normal((examples, 4 * count))
        inputs = [mx.nd.array(each, dtype="float32") for each in (probability, offsets, anchors)]
        yield (
            f"MultiBoxDetection {count} x{examples}, {classes} classes, {threshold}",
            lambda inputs=inputs, threshold=threshold: mx.nd.contrib.MultiBoxDetection(
                *inputs, threshold=threshold, nms_threshold=0.45
            ).wait_to_read(),
        )


def regions(mx):
    """Calls of ROIAlign, and with the gradient, by name."""
    for count, channels, size, cells, samples in (
        (1000, 64, 50, 7, 2), (1000, 256, 50, 7, 2), (1000, 64, 50, 14, -1), (5000, 16, 50, 7, 2),
        (100, 256, 200, 7, 2),
    ):  # fmt: skip
        data = mx.nd.array(CHANCE.standard_normal((2, channels, size, size)), dtype="float32")
        center, sides = CHANCE.uniform(0, 16 * size, (count, 2)), CHANCE.uniform(10, 400, (count, 2))
        rois = np.concatenate([CHANCE.integers(0, 2, (count, 1)), center - sides / 2, center + sides / 2], -1)
        rois = mx.nd.array(rois, dtype="float32")
        data.attach_grad()

        def forward(data=data, rois=rois, cells=cells, samples=samples):
            return mx.nd.contrib.ROIAlign(
                data, rois, pooled_size=(cells, cells), spatial_scale=1 / 16, sample_ratio=samples
            )

        def both(data=data, forward=forward):
            with mx.autograd.record():
                output = forward()
            output.backward()
            data.grad.wait_to_read()

        name = f"ROIAlign {count}, {channels}x{size}x{size}, {cells}, {samples}"
        yield name, lambda forward=forward: forward().wait_to_read()
        yield f"{name}, gradient", both


def main():
    """Measure one system."""
    mx = importlib.import_module(sys.argv[1])
    figures = {}
    for kind in (suppression, predictions, regions):
        for name, call in kind(mx):
            call()
            best = float("inf")
            for _ in range(3):
                start = time.perf_counter()
                call()
                best = min(best, time.perf_counter() - start)
            figures[name] = 1e3 * best
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
