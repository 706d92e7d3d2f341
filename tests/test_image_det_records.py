"""ImageDetRecordIter: MXNet's batches; boxes that follow what is done to images; errors."""

import json

import numpy as np
import pytest

import flowmx as mx
from flowmx.data.augmentation import boxes, options
from tests.fixtures import record_boxes as recorded

EXPECTED = json.loads(recorded.RECORDED.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("boxes")
    recorded.write(mx, folder)
    return folder


@pytest.mark.parametrize("name", recorded.FIXED)
def test_gives_mxnets_batches(name, folder):
    found = recorded.batch_of(mx.io.ImageDetRecordIter(**recorded.arguments(name, folder)))
    expected = EXPECTED[name]
    np.testing.assert_allclose(found["label"], expected["label"], atol=1e-6)
    np.testing.assert_allclose(found["means"], expected["means"], atol=1e-6)
    assert found["shapes"] == expected["shapes"] and found["data"] == expected["data"]


def augmented(image, label, size=(30, 40), seed=0, **given):
    return boxes.augment(
        image, np.array(label, np.float32), options.DetAugmenting(**given), size, np.random.default_rng(seed)
    )


MARKED = {"rand_crop_prob": 1.0, "rand_pad_prob": 1.0, "max_pad_scale": 3.0, "rand_mirror_prob": 0.5}


@pytest.mark.parametrize("mode", ["center", "overlap"])
@pytest.mark.parametrize("seed", range(60))
def test_boxes_stay_on_their_objects(seed, mode):
    """An object is a bright rectangle: where its box is, it is bright, and nowhere else."""
    random = np.random.default_rng(seed)
    image = np.zeros((120, 160, 3), np.uint8)
    left, top = random.integers(0, 100), random.integers(0, 60)
    right, bottom = left + random.integers(20, 60), top + random.integers(20, 60)
    image[top:bottom, left:right] = 200
    label = [2, 5, 1, left / 160, top / 120, right / 160, bottom / 120]
    given = {
        **MARKED,
        "min_crop_scales": 0.3,
        "min_crop_object_coverages": 0.5,
        "crop_emit_mode": mode,
        "fill_value": 0,
    }
    given = {name: (value,) if name.startswith("min") else value for name, value in given.items()}
    given |= {"min_crop_aspect_ratios": (0.5,), "max_crop_aspect_ratios": (2.0,)}
    made, numbers = augmented(image, label, (120, 160), seed, inter_method=0, **given)
    assert numbers[:3].tolist() == [2, 5, 1]
    x0, y0, x1, y1 = numbers[3:7] * [160, 120, 160, 120]
    rows, columns = np.nonzero(made[:, :, 0] > 100)
    found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    # A pixel of the part that was cut may be many in what it was enlarged to.
    np.testing.assert_allclose(found, [x0, y0, x1, y1], atol=12)
    assert 0 <= x0 < x1 <= 160 and 0 <= y0 < y1 <= 120


def test_a_sampler_that_finds_nothing_leaves_the_image():
    image = np.random.default_rng(1).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    label = [2, 5, 1, 0.0, 0.0, 0.01, 0.01]
    made, numbers = augmented(image, label, rand_crop_prob=1, min_crop_overlaps=(0.99,), max_crop_scales=(0.9,))
    assert (made == image).all() and numbers.tolist() == np.array(label, np.float32).tolist()


def test_objects_that_a_crop_leaves_out_are_dropped():
    image = np.zeros((100, 100, 3), np.uint8)
    label = [2, 5, 1, 0.0, 0.0, 0.2, 0.2, 2, 0.8, 0.8, 1.0, 1.0]
    given = {"min_crop_scales": (0.4,), "max_crop_scales": (0.6,), "max_crop_trials": (1000,)}
    counts = set()
    for seed in range(40):
        _, numbers = augmented(image, label, seed=seed, rand_crop_prob=1, **given)
        counts.add((len(numbers) - 2) // 5)
    assert counts == {1}


def test_colours_change_and_boxes_do_not():
    image = np.random.default_rng(2).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    label = [2, 5, 1, 0.1, 0.2, 0.5, 0.6]
    for kind in ("hue", "saturation", "illumination", "contrast"):
        most = 0.5 if kind == "contrast" else 60
        made, numbers = augmented(image, label, **{f"random_{kind}_prob": 1.0, f"max_random_{kind}": most})
        assert (made != image).any() and numbers[2:].tolist() == np.array(label, np.float32)[2:].tolist()


RANDOM = {"data_shape": (3, 24, 20), "batch_size": 3, "shuffle": True, "rand_mirror_prob": 0.5, "rand_crop_prob": 0.5}


@pytest.mark.parametrize("threads", [1, 3])
def test_the_seed_decides_whatever_the_threads(folder, threads):
    def epoch(seed, threads):
        iterator = mx.io.ImageDetRecordIter(
            path_imgrec=str(folder / "boxes.rec"), seed=seed, preprocess_threads=threads, **RANDOM
        )
        return [(batch.data[0].asnumpy(), batch.label[0].asnumpy()) for batch in iterator]

    first, again, other = epoch(3, 1), epoch(3, threads), epoch(4, threads)
    assert all((a == b).all() for one, two in zip(first, again, strict=True) for a, b in zip(one, two, strict=True))
    assert any((one[0] != two[0]).any() for one, two in zip(first, other, strict=True))


def test_a_mean_image_is_made_then_used(folder, tmp_path):
    given = {**recorded.arguments("forced", folder), "mean_img": str(tmp_path / "mean.nd")}
    plain = mx.io.ImageDetRecordIter(**recorded.arguments("forced", folder)).next().data[0].asnumpy()
    for _ in range(2):
        centred = mx.io.ImageDetRecordIter(**given).next().data[0].asnumpy()
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
    given, message = wrong
    with pytest.raises(ValueError, match=message) as raised:
        mx.io.ImageDetRecordIter(**{**recorded.arguments("forced", folder), **given})
    assert str(raised.value).startswith("ImageDetRecordIter: ")


def test_says_which_record_has_a_wrong_label(folder, tmp_path):
    writer = mx.recordio.MXRecordIO(str(tmp_path / "wrong.rec"), "w")
    for number, label in enumerate([recorded.LABELS[0], [2, 5, 1, 0.1]]):
        header = mx.recordio.IRHeader(0, np.array(label, np.float32), number, 0)
        writer.write(mx.recordio.pack(header, recorded.files()[0].read_bytes()))
    writer.close()
    iterator = mx.io.ImageDetRecordIter(path_imgrec=str(tmp_path / "wrong.rec"), data_shape=(3, 8, 8), batch_size=2)
    with pytest.raises(mx.MXNetError, match=r"record 1 of .*its label has 4 numbers which begin with"):
        iterator.next()


def test_labels_of_a_list_must_be_there(folder, tmp_path):
    (tmp_path / "short.lst").write_text("0\t2\t5\t1\t0.1\t0.1\t0.5\t0.5\ta.jpg\n")
    given = {**recorded.arguments("forced", folder), "path_imglist": str(tmp_path / "short.lst")}
    with pytest.raises(mx.MXNetError, match=r"which .*short\.lst' has no labels for"):
        mx.io.ImageDetRecordIter(**given).next()


def test_goes_on_from_a_state(folder):
    iterator = mx.io.ImageDetRecordIter(path_imgrec=str(folder / "boxes.rec"), **RANDOM)
    iterator.next()
    state, expected = iterator.state(), iterator.next()
    other = mx.io.ImageDetRecordIter(path_imgrec=str(folder / "boxes.rec"), **RANDOM)
    other.set_state(state)
    assert (other.next().data[0].asnumpy() == expected.data[0].asnumpy()).all()
    assert isinstance(other, mx.io.io.MXDataIter)


@pytest.mark.parametrize("front", [float("nan"), float("inf"), -3.0, 1e30])
@pytest.mark.parametrize("place", [0, 1])
def test_numbers_that_describe_no_label_are_refused(place, front):
    label = [2.0, 5.0, 1.0, 0.1, 0.1, 0.5, 0.5]
    label[place] = front
    with pytest.raises(mx.MXNetError, match="its label has 7 numbers"):
        augmented(np.zeros((8, 8, 3), np.uint8), label)


@pytest.mark.parametrize("mode", ["fit", "shrink"])
def test_a_strip_keeps_one_row(mode):
    made, _ = augmented(np.zeros((1, 400, 3), np.uint8), [2, 5, 1, 0.1, 0.1, 0.5, 0.5], (8, 8), resize_mode=mode)
    assert made.shape == (1, 8, 3)
