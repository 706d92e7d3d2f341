"""ROIAlign and PSROIPooling: the compiled loops against the array namespace, and a loop over samples."""

import numpy as np
import pytest

from flowmx import devices
from flowmx.devices.context import cpu
from flowmx.ops.kernels.llvm import region_averages
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.operators import Run, lookup

pytest.importorskip("llvmlite")

ALIGN = {"pooled_size": (3, 4), "spatial_scale": 0.5}
GROUPED = {"spatial_scale": 0.5, "output_dim": 3, "pooled_size": 4, "group_size": 2}
CASES = [
    ("_contrib_ROIAlign", 1, ALIGN),
    ("_contrib_ROIAlign", 100, {**ALIGN, "sample_ratio": 2}),
    ("_contrib_ROIAlign", 37, {**ALIGN, "sample_ratio": 1, "aligned": True}),
    ("_contrib_ROIAlign", 24, {**ALIGN, "position_sensitive": True}),
    ("_contrib_PSROIPooling", 12, GROUPED),
]


def drawn(channels, count, dtype, inside=False):
    rng = np.random.default_rng(count)
    data = rng.standard_normal((3, channels, 13, 17)).astype(dtype)
    low, sides = rng.uniform(-5, 30, (count, 2)), rng.uniform(1 if inside else -5, 20, (count, 2))
    images = rng.integers(-1, 3, (count, 1))
    return data, np.concatenate([images, low, low + sides], axis=1).astype(dtype)


def forward(op, inputs, fast):
    spec = op.spec(tuple(each.shape for each in inputs), tuple(each.dtype for each in inputs))
    out = np.full(spec.shapes[0], 7, spec.dtypes[0])
    run = Run(devices.get(cpu()), True)
    if fast:
        kernel = kernel_for("cpu", op.name)
        assert kernel is not None
        kernel.compute(op, run, inputs, [out])
    else:
        op.forward(run, inputs, [out])
    return out


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "channels", "params"), CASES, ids=str)
def test_matches_the_array_namespace(name, channels, params, dtype, monkeypatch):
    op = lookup(name).create(**params)
    back = lookup(name.replace("_contrib", "_backward")).create(**params)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == "float32" else {"rtol": 1e-12, "atol": 1e-12}
    calls = []
    program = region_averages._program
    monkeypatch.setattr(region_averages, "_program", lambda *kind: calls.append(kind) or program(*kind))
    for copied in (0, 1000):
        monkeypatch.setattr(region_averages, "_COPIED", copied)
        for count in (0, 1, 40):
            data, rois = drawn(channels, count, dtype, inside="aligned" in params)
            actual, expected = (forward(op, [data, rois], fast) for fast in (True, False))
            np.testing.assert_allclose(actual, expected, **tolerance)
            head = np.random.default_rng(1).standard_normal(actual.shape).astype(dtype)
            actual, expected = (forward(back, [head, data, rois], fast) for fast in (True, False))
            np.testing.assert_allclose(actual, expected, **tolerance)
    copies = {packed for _, _, packed in calls}
    assert copies == ({False} if "position_sensitive" in params or "output_dim" in params else {False, True})


def test_align_matches_a_loop_over_samples():
    data, rois = drawn(2, 20, "float64")
    op = lookup("_contrib_ROIAlign").create(**ALIGN, sample_ratio=-1)
    cells = forward(op, [data, rois], True)
    for region, (image, *corners) in enumerate(rois):
        left, top, right, bottom = (each * 0.5 for each in corners)
        height, width = max(bottom - top, 1) / 3, max(right - left, 1) / 4
        down, across = int(np.ceil(height)), int(np.ceil(width))
        for row, column in np.ndindex(3, 4):
            total = np.zeros(2)
            for one, other in np.ndindex(down, across):
                y, x = top + (row + (one + 0.5) / down) * height, left + (column + (other + 0.5) / across) * width
                if not (-1 <= y <= 13 and -1 <= x <= 17) or image < 0:
                    continue
                y, x = np.clip(y, 0, 12), np.clip(x, 0, 16)
                for line, pixel in np.ndindex(2, 2):
                    v, u = min(int(y) + line, 12), min(int(x) + pixel, 16)
                    weight = abs(1 - line - (y - int(y))) * abs(1 - pixel - (x - int(x)))
                    total += weight * data[int(image), :, v, u]
            np.testing.assert_allclose(cells[region, :, row, column], total / (down * across), rtol=1e-9, atol=1e-12)


def test_long_regions_are_processed_in_blocks():
    data = np.random.default_rng(0).standard_normal((1, 2, 5, 6))
    rois = np.array([[0, -40, -30, 200, 300.0], [0, 0, 0, 6, 5]])
    op = lookup("_contrib_ROIAlign").create(pooled_size=(2, 1), spatial_scale=1.0)
    cells = forward(op, [data, rois], True)
    np.testing.assert_allclose(cells, forward(op, [data, rois], False), rtol=1e-12)
    rows, columns = op.spans(np, rois, (5, 6))
    # Each sample that counts has a weight of one over the samples of its cell.
    assert rows.weight.sum(axis=2)[0].tolist() == pytest.approx([6 / 165, 0])
    assert columns.weight.sum(axis=2)[0].tolist() == pytest.approx([7 / 240])


def test_nan_regions_do_not_change_other_pixels():
    data = np.ones((1, 1, 8, 8), "float32")
    data[0, 0, 7] = np.nan
    op = lookup("_contrib_ROIAlign").create(pooled_size=(2, 2), spatial_scale=1.0, sample_ratio=2)
    assert (forward(op, [data, np.array([[0, 0, 0, 4, 4]], "float32")], True) == 1).all()
