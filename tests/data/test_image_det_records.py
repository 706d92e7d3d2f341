"""ImageDetRecordIter: MXNet's batches; boxes that follow changes of images; errors."""

import json

import numpy as np
import pytest

import flowmx as mx
from flowmx.data.augmentation import box_augment, options
from tests.fixtures import record_boxes as recorded

EXPECTED = json.loads(recorded.RECORDED.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("boxes")
    recorded.write(mx, folder)
    return folder


@pytest.mark.parametrize("name", recorded.FIXED)
def test_yields_mxnets_batches(name, folder):
    actual = recorded.batch_of(mx.io.ImageDetRecordIter(**recorded.arguments(name, folder)))
    expected = EXPECTED[name]
    np.testing.assert_allclose(actual["label"], expected["label"], atol=1e-6)
    np.testing.assert_allclose(actual["means"], expected["means"], atol=1e-6)
    assert actual["shapes"] == expected["shapes"] and actual["data"] == expected["data"]


def augment(image, label, size=(30, 40), seed=0, **parameters):
    return box_augment.augment(
        image, np.array(label, np.float32), options.DetAugmentOptions(**parameters), size, np.random.default_rng(seed)
    )


RANDOM_CHANGES = {"rand_crop_prob": 1.0, "rand_pad_prob": 1.0, "max_pad_scale": 3.0, "rand_mirror_prob": 0.5}


@pytest.mark.parametrize("mode", ["center", "overlap"])
@pytest.mark.parametrize("seed", range(60))
def test_boxes_stay_on_their_objects(seed, mode):
    """The object is a bright rectangle: the image is bright inside its box, and only there."""
    random = np.random.default_rng(seed)
    image = np.zeros((120, 160, 3), np.uint8)
    left, top = random.integers(0, 100), random.integers(0, 60)
    right, bottom = left + random.integers(20, 60), top + random.integers(20, 60)
    image[top:bottom, left:right] = 200
    label = [2, 5, 1, left / 160, top / 120, right / 160, bottom / 120]
    parameters = {
        **RANDOM_CHANGES,
        "min_crop_scales": 0.3,
        "min_crop_object_coverages": 0.5,
        "crop_emit_mode": mode,
        "fill_value": 0,
    }
    parameters = {name: (value,) if name.startswith("min") else value for name, value in parameters.items()}
    parameters |= {"min_crop_aspect_ratios": (0.5,), "max_crop_aspect_ratios": (2.0,)}
    changed, numbers = augment(image, label, (120, 160), seed, inter_method=0, **parameters)
    assert numbers[:3].tolist() == [2, 5, 1]
    x0, y0, x1, y1 = numbers[3:7] * [160, 120, 160, 120]
    rows, columns = np.nonzero(changed[:, :, 0] > 100)
    box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    # A pixel of the crop may become many when it is enlarged.
    np.testing.assert_allclose(box, [x0, y0, x1, y1], atol=12)
    assert 0 <= x0 < x1 <= 160 and 0 <= y0 < y1 <= 120


def test_a_sampler_without_a_valid_crop_leaves_the_image():
    image = np.random.default_rng(1).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    label = [2, 5, 1, 0.0, 0.0, 0.01, 0.01]
    changed, numbers = augment(image, label, rand_crop_prob=1, min_crop_overlaps=(0.99,), max_crop_scales=(0.9,))
    assert (changed == image).all() and numbers.tolist() == np.array(label, np.float32).tolist()


def test_objects_outside_a_crop_are_dropped():
    image = np.zeros((100, 100, 3), np.uint8)
    label = [2, 5, 1, 0.0, 0.0, 0.2, 0.2, 2, 0.8, 0.8, 1.0, 1.0]
    parameters = {"min_crop_scales": (0.4,), "max_crop_scales": (0.6,), "max_crop_trials": (1000,)}
    counts = set()
    for seed in range(40):
        _, numbers = augment(image, label, seed=seed, rand_crop_prob=1, **parameters)
        counts.add((len(numbers) - 2) // 5)
    assert counts == {1}


def test_colors_change_and_boxes_do_not():
    image = np.random.default_rng(2).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    label = [2, 5, 1, 0.1, 0.2, 0.5, 0.6]
    for kind in ("hue", "saturation", "illumination", "contrast"):
        maximum = 0.5 if kind == "contrast" else 60
        changed, numbers = augment(image, label, **{f"random_{kind}_prob": 1.0, f"max_random_{kind}": maximum})
        assert (changed != image).any() and numbers[2:].tolist() == np.array(label, np.float32)[2:].tolist()


RANDOM = {"data_shape": (3, 24, 20), "batch_size": 3, "shuffle": True, "rand_mirror_prob": 0.5, "rand_crop_prob": 0.5}


@pytest.mark.parametrize("threads", [1, 3])
def test_the_seed_determines_the_batches_for_any_threads(folder, threads):
    def epoch(seed, threads):
        iterator = mx.io.ImageDetRecordIter(
            path_imgrec=str(folder / "boxes.rec"), seed=seed, preprocess_threads=threads, **RANDOM
        )
        return [(batch.data[0].asnumpy(), batch.label[0].asnumpy()) for batch in iterator]

    first, second, other = epoch(3, 1), epoch(3, threads), epoch(4, threads)
    assert all((a == b).all() for one, two in zip(first, second, strict=True) for a, b in zip(one, two, strict=True))
    assert any((one[0] != two[0]).any() for one, two in zip(first, other, strict=True))


def test_a_mean_image_is_computed_then_used(folder, tmp_path):
    arguments = {**recorded.arguments("forced", folder), "mean_img": str(tmp_path / "mean.nd")}
    plain = mx.io.ImageDetRecordIter(**recorded.arguments("forced", folder)).next().data[0].asnumpy()
    for _ in range(2):
        centred = mx.io.ImageDetRecordIter(**arguments).next().data[0].asnumpy()
        np.testing.assert_allclose(centred, plain - plain.mean(0), atol=1e-4)


@pytest.mark.parametrize("wrong", [
    ({"label_pad_width": 5}, "label_pad_width is 5, but a label has 17 numbers"),
    ({"crop_emit_mode": "edge"}, "crop_emit_mode is 'edge', expected 'center' or 'overlap'"),
    ({"resize_mode": "no"}, "resize_mode is 'no', expected 'force' or 'shrink' or 'fit'"),
    ({"num_crop_sampler": 3, "min_crop_scales": (0.1, 0.2)}, "min_crop_scales has 2 values, expected one or num_crop_"),
    ({"min_crop_overlaps": (0.5,), "max_crop_overlaps": (0.2,)}, "min_crop_overlaps is 0.5 and max"),
    ({"aug_seq": "aug_default"}, "aug_seq is 'aug_default', expected 'det_aug_default'"),
    ({"batch_size": 0}, "batch_size is 0, expected at least 1"),
], ids=lambda wrong: next(iter(wrong[0])))  # fmt: skip
def test_refuses_arguments(folder, wrong):
    arguments, message = wrong
    with pytest.raises(ValueError, match=message) as raised:
        mx.io.ImageDetRecordIter(**{**recorded.arguments("forced", folder), **arguments})
    assert str(raised.value).startswith("ImageDetRecordIter: ")


def test_names_the_record_with_a_wrong_label(folder, tmp_path):
    writer = mx.recordio.MXRecordIO(str(tmp_path / "wrong.rec"), "w")
    for number, label in enumerate([recorded.LABELS[0], [2, 5, 1, 0.1]]):
        header = mx.recordio.IRHeader(0, np.array(label, np.float32), number, 0)
        writer.write(mx.recordio.pack(header, recorded.files()[0].read_bytes()))
    writer.close()
    iterator = mx.io.ImageDetRecordIter(path_imgrec=str(tmp_path / "wrong.rec"), data_shape=(3, 8, 8), batch_size=2)
    with pytest.raises(mx.MXNetError, match=r"record 1 of .*its label has 4 numbers which begin with"):
        iterator.next()


def test_labels_missing_in_a_list_are_an_error(folder, tmp_path):
    (tmp_path / "short.lst").write_text("0\t2\t5\t1\t0.1\t0.1\t0.5\t0.5\ta.jpg\n")
    arguments = {**recorded.arguments("forced", folder), "path_imglist": str(tmp_path / "short.lst")}
    with pytest.raises(mx.MXNetError, match=r"short\.lst' has no labels for it"):
        mx.io.ImageDetRecordIter(**arguments).next()


def test_resumes_from_a_state(folder):
    iterator = mx.io.ImageDetRecordIter(path_imgrec=str(folder / "boxes.rec"), **RANDOM)
    iterator.next()
    state, expected = iterator.state(), iterator.next()
    other = mx.io.ImageDetRecordIter(path_imgrec=str(folder / "boxes.rec"), **RANDOM)
    other.set_state(state)
    assert (other.next().data[0].asnumpy() == expected.data[0].asnumpy()).all()
    assert isinstance(other, mx.io.io.MXDataIter)


@pytest.mark.parametrize("front", [float("nan"), float("inf"), -3.0, 1e30])
@pytest.mark.parametrize("place", [0, 1])
def test_refuses_numbers_that_are_not_a_label(place, front):
    label = [2.0, 5.0, 1.0, 0.1, 0.1, 0.5, 0.5]
    label[place] = front
    with pytest.raises(mx.MXNetError, match="its label has 7 numbers"):
        augment(np.zeros((8, 8, 3), np.uint8), label)


@pytest.mark.parametrize("mode", ["fit", "shrink"])
def test_a_strip_keeps_one_row(mode):
    changed, _ = augment(np.zeros((1, 400, 3), np.uint8), [2, 5, 1, 0.1, 0.1, 0.5, 0.5], (8, 8), resize_mode=mode)
    assert changed.shape == (1, 8, 3)
