"""ImageRecordIter: MXNet's batches, orders, seeds, resuming, errors, leaks."""

import asyncio
import gc
import json
import os
import threading
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import flowmx as mx
from flowmx.data import codecs
from flowmx.data.augmentation import augment, geometry, normalize
from flowmx.data.augmentation.color_jitter import from_hls, to_hls
from flowmx.data.augmentation.options import ReadingOptions
from flowmx.data.batch_order import BatchOrder
from flowmx.data.records.reader import Source
from tests.fixtures import record_images as recorded

EXPECTED = json.loads((recorded.FOLDER / "recorded.json").read_text())
REC, IDX = str(recorded.FOLDER / "small.rec"), str(recorded.FOLDER / "small.idx")
RANDOM = {
    "data_shape": (3, 24, 20), "batch_size": 3, "rand_crop": True, "rand_mirror": True, "shuffle": True, "seed": 5,
}  # fmt: skip


def images(**arguments):
    return mx.io.ImageRecordIter(**{"path_imgrec": REC, "data_shape": (3, 24, 20), "batch_size": 3, **arguments})


def epoch(iterator):
    return [(batch.data[0].asnumpy(), batch.label[0].asnumpy(), batch.pad, batch.index.tolist()) for batch in iterator]


def check_equal(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert (one[0] == other[0]).all() and (one[1] == other[1]).all() and one[2:] == other[2:]


@pytest.mark.parametrize("name", [name for name in recorded.FIXED if name not in recorded.WARPED])
def test_pixels_match_mxnet(name):
    iterator = images(**{**recorded.FIXED[name], "batch_size": recorded.IMAGES})
    data = iterator.next().data[0].asnumpy()
    shape, dtype, digest, mean = EXPECTED["fixed"][name]
    assert list(data.shape) == shape and str(data.dtype) == dtype
    assert data.astype(np.float64).mean() == pytest.approx(mean, abs=1e-9)
    assert recorded.digest(data) == digest


@pytest.mark.parametrize("name", recorded.WARPED)
def test_warps_nearly_like_mxnet(name):
    iterator = images(**{**recorded.FIXED[name], "batch_size": recorded.IMAGES})
    data = iterator.next().data[0].asnumpy()
    difference = np.abs(data - np.load(recorded.FOLDER / "warped.npz")[name])
    assert difference.mean() < 0.6 and np.quantile(difference, 0.99) <= 4


@pytest.mark.parametrize("arguments", recorded.ORDERS, ids=str)
def test_orders_match_mxnet(arguments):
    epochs = EXPECTED["orders"][recorded.ORDERS.index(arguments)]
    iterator = mx.io.ImageRecordIter(**recorded.paths(arguments, recorded.FOLDER), data_shape=(3, 8, 8), batch_size=3)
    for expected in epochs:
        assert [[data[:, 0, 0, 0].tolist(), pad] for data, _, pad, _ in epoch(iterator)] == expected
        iterator.reset()


@pytest.mark.parametrize("index", [None, IDX])
def test_parts_cover_all_images_once(index):
    for parts in (1, 2, 3):
        read = []
        for part in range(parts):
            iterator = images(path_imgidx=index, num_parts=parts, part_index=part, batch_size=1)
            read += [number for *_, numbers in epoch(iterator) for number in numbers]
        assert read == list(range(recorded.IMAGES))


def test_describes_its_batches():
    iterator = images(data_name="x", label_name="y", batch_size=2)
    assert [tuple(desc) for desc in iterator.provide_data] == [("x", (2, 3, 24, 20))]
    assert [tuple(desc) for desc in iterator.provide_label] == [("y", (2,))]
    assert iterator.iter_next() and iterator.getdata().shape == (2, 3, 24, 20) and iterator.getpad() == 0
    assert iterator.getlabel().shape == (2,)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("ahead", [1, 5])
def test_the_seed_determines_the_batches_for_any_threads(threads, ahead):
    first, second = images(**RANDOM), images(**RANDOM, preprocess_threads=threads, prefetch_buffer=ahead)
    for _ in range(2):
        check_equal(epoch(first), epoch(second))
        first.reset(), second.reset()


def test_seeds_and_epochs_differ():
    iterator = images(**RANDOM)
    first = epoch(iterator)
    iterator.reset()
    second, other = epoch(iterator), epoch(images(**{**RANDOM, "seed": 6}))
    for batches in (second, other):
        assert [batch[3] for batch in batches] != [batch[3] for batch in first]
    augmented = epoch(images(**{**RANDOM, "seed_aug": 1}))
    assert [batch[3] for batch in augmented] == [batch[3] for batch in first]
    assert any((a[0] != b[0]).any() for a, b in zip(augmented, first, strict=True))


@pytest.mark.parametrize("count", range(6))
@pytest.mark.parametrize("round_batch", [True, False])
def test_resumes_from_a_state(count, round_batch):
    complete = images(**RANDOM, round_batch=round_batch)
    iterator = images(**RANDOM, round_batch=round_batch, preprocess_threads=1)
    expected, batches = [], []
    for _ in range(3):
        expected += epoch(complete)
        complete.reset()
    for _ in range(3):
        for batch in iterator:
            if len(batches) == count:
                break
            batches.append(batch)
        else:
            iterator.reset()
            continue
        break
    # The state is saved before the last batch that was read, so that batch is made again.
    resumed = images(**RANDOM, round_batch=round_batch)
    state = _state_after(resumed, count)
    resumed = images(**RANDOM, round_batch=round_batch)
    resumed.set_state(json.loads(json.dumps(state)))
    actual = list(epoch(resumed))
    while len(actual) < len(expected) - count:
        resumed.reset()
        actual += epoch(resumed)
    check_equal(expected[count:], actual)


def _state_after(iterator, count):
    """Return the state after a number of batches; at the end of an epoch, before the next begins."""
    for _ in range(count):
        try:
            iterator.next()
        except StopIteration:
            iterator.reset()
            iterator.next()
    return iterator.state()


def test_refuses_states_of_other_iterators():
    state = images(**RANDOM).state()
    with pytest.raises(ValueError, match="batch_size = 3, but this iterator has 2"):
        images(**{**RANDOM, "batch_size": 2}).set_state(state)
    with pytest.raises(ValueError, match="seed = 5, but this iterator has 6"):
        images(**{**RANDOM, "seed": 6}).set_state(state)


def test_a_reset_in_the_middle_restarts_the_epoch():
    iterator = images()
    first = iterator.next().index.tolist()
    iterator.reset()
    assert iterator.next().index.tolist() == first


async def test_async_for():
    pads = [batch.pad async for batch in images()]
    assert pads == [0, 0, 2]


async def test_an_abandoned_loop_does_not_wait():
    async for _ in images(prefetch_buffer=8, batch_size=1):
        break
    await asyncio.sleep(0)


def test_leaks_no_threads():
    iterator = images(preprocess_threads=2)
    epoch(iterator)
    workers = [thread for thread in threading.enumerate() if thread.name.startswith("flowmx-decode")]
    assert workers
    del iterator
    gc.collect()
    for thread in workers:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")
def test_abandoned_loops_leak_no_descriptors():
    def count_descriptors():
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    next(images())
    before = count_descriptors()
    for _ in range(20):
        for _ in images(path_imgidx=IDX):
            break
    mx.nd.waitall()
    assert count_descriptors() <= before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_continues_in_the_child_of_a_fork():
    iterator, batches = images(**RANDOM), [batch[3] for batch in epoch(images(**RANDOM))]
    assert iterator.next().index.tolist() == batches[0]
    child = os.fork()
    if child == 0:
        os._exit(0 if iterator.next().index.tolist() == batches[1] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert iterator.next().index.tolist() == batches[1]


# -- labels ------------------------------------------------------------------------------------------------


def pack_file(tmp_path, labels):
    with mx.recordio.MXIndexedRecordIO(IDX, REC, "r") as source, mx.recordio.MXRecordIO(tmp_path / "a.rec", "w") as out:
        for key, label in zip(source.keys, labels, strict=False):
            _, raw = mx.recordio.unpack(source.read_idx(key))
            out.write(mx.recordio.pack((0, label, key, 0), raw))
    return str(tmp_path / "a.rec")


def test_several_labels(tmp_path):
    path = pack_file(tmp_path, [[1, 2], [3, 4], [5, 6]])
    (batch,) = images(path_imgrec=path, label_width=2)
    assert batch.label[0].asnumpy().tolist() == [[1, 2], [3, 4], [5, 6]]
    with pytest.raises(ValueError, match=r"record 0 of .* at offset 0: it has 2 label\(s\), but label_width is 1"):
        images(path_imgrec=path).next()


def test_labels_from_a_list(tmp_path):
    (tmp_path / "a.lst").write_text("".join(f"{k}\t{k * 10}\t{k}\t{k}.jpg\n" for k in range(6)))
    batches = epoch(images(path_imglist=str(tmp_path / "a.lst"), label_width=2, num_parts=2, part_index=0))
    assert batches[0][1].tolist() == [[0, 0], [10, 1], [20, 2]]
    with pytest.raises(ValueError, match=r"its image has the number 6, and .*a.lst' has no labels for it"):
        epoch(images(path_imglist=str(tmp_path / "a.lst"), label_width=2))
    (tmp_path / "a.lst").write_text("0\t0\t0.jpg\n1\tnone\t1.jpg\n")
    with pytest.raises(ValueError, match=r"line 2 of .* is '1\\tnone"):
        images(path_imglist=str(tmp_path / "a.lst"))


# -- augmentation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"random_resized_crop": True, "min_random_area": 0.3, "max_aspect_ratio": 0.3},
        {"max_crop_size": 30, "min_crop_size": 25, "rand_crop": True},
        {"max_rotate_angle": 20, "max_shear_ratio": 0.1, "min_img_size": 24, "inter_method": 10},
        {"brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "pca_noise": 0.1},
        {"random_h": 30, "random_s": 40, "random_l": 50},
        {"max_random_contrast": 0.3, "max_random_illumination": 20, "scale": 1 / 255},
        {"rotate_list": (90, 180), "max_random_scale": 2, "min_random_scale": 1.5},
    ],
    ids=str,
)
def test_random_changes_are_reproducible_and_plausible(arguments):
    first, second = epoch(images(**arguments)), epoch(images(**arguments))
    check_equal(first, second)
    plain = epoch(images())
    for (data, *_), (before, *_) in zip(first, plain, strict=True):
        assert data.shape == before.shape and np.isfinite(data).all() and (data != before).any()
        assert abs(data.mean() / arguments.get("scale", 1) - before.mean()) < 60


def test_crops_the_centre_if_no_part_of_these_proportions_fits():
    wide = {"random_resized_crop": True, "min_random_area": 0.9, "min_aspect_ratio": 3, "max_aspect_ratio": 4}
    check_equal(epoch(images(**wide)), epoch(images()))


def test_parts_have_the_drawn_area_and_proportions(monkeypatch):
    monkeypatch.setattr(augment, "_resize", lambda part, *_: part)
    options = SimpleNamespace(aspect_ratios=(0.5, 1.5), min_random_area=0.2, max_random_area=0.3)
    random = np.zeros(63)
    random[10:13] = 0.5, 0.75, 0.0  # a quarter of the image, 1.25 times as wide as high
    assert augment._random_area(np.zeros((40, 40, 3)), options, (8, 8), random).shape == (18, 22, 3)
    random[12] = 1.0  # as high as wide before
    assert augment._random_area(np.zeros((40, 40, 3)), options, (8, 8), random).shape == (22, 18, 3)


def test_mirrors_about_half_of_the_images():
    iterator = images(rand_mirror=True, batch_size=7)
    plain = images(batch_size=7).next().data[0].asnumpy()
    mirrored = []
    for _ in range(30):
        (batch,) = epoch(iterator)
        for image, before in zip(batch[0], plain, strict=True):
            turned = (image == before[:, :, ::-1]).all()
            assert turned or (image == before).all()
            mirrored.append(bool(turned))
        iterator.reset()
    assert 0.35 < np.mean(mirrored) < 0.65


def test_random_crops_reach_every_corner():
    iterator = images(data_shape=(3, 33, 33), rand_crop=True, batch_size=7)
    originals = {k: codecs.decode((recorded.FOLDER / "files" / f"{k}.jpg").read_bytes()) for k in range(7)}
    rows = set()
    for _ in range(12):
        ((data, _, _, numbers),) = epoch(iterator)
        for image, number in zip(data, numbers, strict=True):
            original = originals[number].transpose(2, 0, 1)
            height, width = original.shape[1:]
            positions = [
                (y, x) for y in range(height - 32) for x in range(width - 32)
                if (original[:, y : y + 33, x : x + 33] == image).all()
            ]  # fmt: skip
            assert positions
            rows.add((positions[0][0] / (height - 33), positions[0][1] / (width - 33)))
        iterator.reset()
    corners = np.array(sorted(rows))
    assert corners.min(0).tolist() == [0, 0] and corners.max(0).tolist() == [1, 1]


def test_a_mean_image_is_computed_then_used(tmp_path):
    path = str(tmp_path / "mean.nd")
    centred = epoch(images(mean_img=path, batch_size=7))[0][0]
    plain = epoch(images(batch_size=7))[0][0]
    assert np.allclose(centred, plain - plain.mean(0), atol=1e-3)
    assert (epoch(images(mean_img=path, batch_size=7))[0][0] == centred).all()
    with pytest.raises(ValueError, match="holds an array of shape"):
        images(mean_img=path, data_shape=(3, 8, 8))


def test_colors_survive_a_round_trip():
    image = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    back = from_hls(to_hls(image)).astype(int)
    assert np.abs(back - image).max() <= 6 and np.abs(back - image).mean() < 1.5
    assert to_hls(np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [9, 9, 9]]], np.uint8)).tolist() == [
        [[0, 128, 255], [60, 128, 255], [120, 128, 255], [0, 9, 0]]
    ]


def test_hue_lightness_and_saturation_are_rounded_like_mxnet():
    """Colors, and the results of MXNet's `ImageRecordIter` with ``random_h=1``: to HLS and back, unchanged."""
    pairs = [
        ((20, 206, 245), (21, 208, 245)), ((49, 232, 185), (50, 232, 184)), ((103, 242, 59), (102, 242, 60)),
        ((124, 194, 19), (125, 195, 19)), ((246, 74, 55), (246, 75, 56)), ((247, 135, 110), (247, 134, 111)),
        ((10, 62, 215), (10, 65, 216)), ((226, 141, 19), (227, 144, 19)),
    ]  # fmt: skip
    image, expected = (np.array([row], np.uint8) for row in zip(*pairs, strict=True))
    assert from_hls(to_hls(image)).tolist() == expected.tolist()


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("width", [16, 17, 31, 48])
def test_the_fused_loop_matches_the_plain_one(mirrored, width):
    image = np.random.default_rng(1).integers(0, 256, (9, width + 5, 3), np.uint8)[2:, 3 : 3 + width]
    scaling = normalize.Scaling(*(np.array(v, np.float32) for v in ([1.5, 2, 3], [0.1, 0.2, 0.3], [7, 8, 9])))
    fused, plain = np.empty((3, 7, width), np.float32), np.empty((3, 7, width))
    normalize.write_image(fused, image, mirrored, scaling)
    normalize.write_image(plain, image, mirrored, scaling)  # float64 is not fused
    assert (fused == plain.astype(np.float32)).all()


# -- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path_imgrec": ""}, "path_imgrec is missing"),
        ({"data_shape": (3, 24)}, r"data_shape is \(3, 24\), expected \(channels, height, width\)"),
        ({"data_shape": "none"}, "data_shape is 'none', expected"),
        ({"batch_size": 0}, "batch_size is 0, expected at least 1"),
        ({"dtype": "int32"}, "dtype is 'int32', expected one of float32"),
        ({"inter_method": 7}, "inter_method is 7, expected 0 to 4, 9 or 10"),
        ({"random_resized_crop": True, "rand_crop": True}, "random_resized_crop=True conflicts with rand_crop"),
        ({"min_random_scale": 2}, "min_random_scale is 2.0, more than max_random_scale"),
        ({"num_parts": 2, "part_index": 2}, "part_index is 2 and num_parts 2"),
        ({"num_parts": 9, "part_index": 8, "path_imgidx": IDX}, "there are no samples"),
        ({"std_r": 0}, "std_r is 0"),
    ],
)
def test_refuses_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        images(**arguments)


def test_defaults_match_mxnet():
    defaults = {field.name: field.default for field in fields(ReadingOptions)}
    expected = {"label_width": 1, "preprocess_threads": 4, "prefetch_buffer": 4, "round_batch": True}
    assert {name: defaults[name] for name in expected} == expected


def test_warns_of_an_unknown_argument():
    with pytest.warns(UserWarning, match=r"unknown argument 'rand_crops' is ignored; did you mean 'rand_crop'"):
        images(rand_crops=True)


def test_accepts_strings_like_mxnet():
    check_equal(
        epoch(images(data_shape="(3,24,20)", batch_size="3", mirror="True", shuffle="0")), epoch(images(mirror=1))
    )


def test_names_the_damaged_record(tmp_path):
    path = pack_file(tmp_path, [0, 1, 2])
    raw = bytearray((tmp_path / "a.rec").read_bytes())
    second = list(Source(path).offsets())[1]
    raw[second + 8 + 24 : second + 8 + 40] = bytes(16)
    (tmp_path / "a.rec").write_bytes(raw)
    iterator = images(path_imgrec=path, batch_size=1)
    iterator.next()
    with pytest.raises(
        ValueError, match=rf"record 1 of .* at offset {second}: imdecode: .* cannot be decoded as an image"
    ):
        iterator.next()
    assert iterator.next().index.tolist() == [2]  # it continues


def test_names_an_image_that_is_too_small():
    with pytest.raises(
        ValueError, match=r"the image is \d+ high and \d+ wide when it is cropped, smaller than max_crop_size"
    ):
        images(max_crop_size=64, min_crop_size=20).next()


# -- orders ------------------------------------------------------------------------------------------------


def test_an_epoch_shorter_than_a_batch_wraps_around():
    order = BatchOrder(2, 5)
    batch = order.take()
    assert batch.rows.tolist() == [0, 1, 0, 1, 0] and batch.pad == 3
    assert order.take() is None
    order.reset()
    assert order.take().rows.tolist() == [1, 0, 1, 0, 1]


def test_a_partial_batch_is_dropped():
    order = BatchOrder(7, 3, "discard")
    assert [order.take().rows.tolist(), order.take().rows.tolist(), order.take()] == [[0, 1, 2], [3, 4, 5], None]
    order.reset()
    assert order.take().rows.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="only 2 samples"):
        BatchOrder(2, 3, "discard")


@pytest.mark.parametrize("end", ["wrap", "repeat", "discard"])
def test_every_state_resumes_the_same_batches(end):
    def batches(order, count):
        calls = []
        while len(calls) < count:
            batch = order.take()
            if batch is None:
                order.reset()
            else:
                calls.append((batch.rows.tolist(), batch.pad, batch.number))
        return calls

    expected = batches(BatchOrder(11, 4, end, True, 3), 12)
    for position in range(12):
        order, other = BatchOrder(11, 4, end, True, 3), BatchOrder(11, 4, end, True, 3)
        batches(order, position)
        other.set_state(json.loads(json.dumps(order.state())))
        assert batches(other, 12 - position) == expected[position:]


@pytest.mark.parametrize(("fill", "stored"), [(0, 0), (255, 255), (300, 255), (-1, 0)])
def test_padding_matches_numpy_with_the_nearest_byte(fill, stored):
    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    for part in (image, image[:, ::-1], image[1:4, 2:5]):
        padded = geometry.pad(part, (2, 1), (0, 3), fill)
        np.testing.assert_array_equal(padded, np.pad(part, ((2, 1), (0, 3), (0, 0)), constant_values=stored))


@pytest.mark.parametrize(("light", "threads"), [(float("inf"), 1), (0.0, 2)])
def test_one_thread_makes_images_that_take_little_time(light, threads, monkeypatch):
    from flowmx.io import record_iter

    monkeypatch.setattr(record_iter, "_LIGHT_IMAGE", light)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    counts = []
    pool = record_iter.RecordIter._pool
    monkeypatch.setattr(
        record_iter.RecordIter, "_pool", lambda self, count: (counts.append(count), pool(self, count))[1]
    )
    batches = epoch(images(preprocess_threads=2, prefetch_buffer=1))
    assert (counts[0], counts[-1]) == (2, threads)
    check_equal(batches, epoch(images(preprocess_threads=1)))
