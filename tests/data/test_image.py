"""mx.image: decoding, sizes, augmenters, iterators, boxes; compared with MXNet's results."""

import io
import json
import struct
import sys

import numpy as np
import PIL.Image
import pytest

import flowmx as mx
from flowmx.data import codecs, rng
from flowmx.ops.kernels.llvm import resizing
from flowmx.ops.vision import opencv_resize
from tests.fixtures import record_images as recorded
from tests.seeding import seed_all

EXPECTED = json.loads((recorded.FOLDER / "recorded.json").read_text())
FILES = recorded.FOLDER / "files"
REC, IDX = recorded.FOLDER / "small.rec", recorded.FOLDER / "small.idx"


@pytest.fixture
def image():
    return mx.image.imread(FILES / "0.jpg")


@pytest.fixture(params=["simplejpeg", "Pillow"])
def decoder(request, monkeypatch):
    if request.param == "Pillow":
        monkeypatch.setitem(sys.modules, "simplejpeg", None)
    codecs._turbo.cache_clear()
    yield request.param
    codecs._turbo.cache_clear()


def encode(picture, kind, **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


# -- decoding ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", [0, 1])
@pytest.mark.parametrize("to_rgb", [0, 1])
def test_decodes_like_mxnet(decoder, flag, to_rgb):
    image = mx.image.imdecode((FILES / "0.jpg").read_bytes(), flag=flag, to_rgb=to_rgb)
    assert image.dtype is np.uint8 and image.shape[2] == (3 if flag else 1)
    assert recorded.digest(image.asnumpy()) == EXPECTED["decoded"][f"{flag} {to_rgb}"]


def test_decodes_bytes_in_any_container(image):
    raw = (FILES / "0.jpg").read_bytes()
    array = np.frombuffer(raw, np.uint8)
    for buffer in (bytearray(raw), memoryview(raw), array, mx.nd.array(array, dtype="uint8")):
        assert (mx.image.imdecode(buffer).asnumpy() == image.asnumpy()).all()
    out = mx.nd.zeros(image.shape, dtype="uint8")
    assert mx.image.imread(str(FILES / "0.jpg"), out=out) is out
    assert (out.asnumpy() == image.asnumpy()).all()


@pytest.mark.parametrize(
    ("mode", "channels"), [("L", {0: 1, 1: 3, -1: 1}), ("RGBA", {0: 1, 1: 3, -1: 4}), ("P", {0: 1, 1: 3, -1: 3})]
)
def test_decodes_png(mode, channels):
    picture = PIL.Image.open(FILES / "0.jpg").convert(mode)
    for flag, count in channels.items():
        decoded = codecs.decode(encode(picture, "PNG"), flag)
        assert decoded.shape == (*picture.size[::-1], count)
        if mode == "RGBA" and flag:
            expected = np.asarray(picture) if flag < 0 else np.asarray(picture.convert("RGB"))
            assert (decoded == expected).all()


def test_decodes_cmyk():
    picture = PIL.Image.open(FILES / "0.jpg")
    decoded = codecs.decode(encode(picture.convert("CMYK"), "JPEG", quality=95))
    assert np.abs(decoded.astype(int) - np.asarray(picture)).mean() < 8


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turns_by_exif_orientation(orientation, decoder):
    picture = PIL.Image.open(FILES / "1.jpg")
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    raw = encode(picture, "JPEG", quality=95, exif=exif)
    upright = codecs.decode(encode(picture, "JPEG", quality=95))
    moves = {2: PIL.Image.Transpose.FLIP_LEFT_RIGHT, 3: PIL.Image.Transpose.ROTATE_180,
             4: PIL.Image.Transpose.FLIP_TOP_BOTTOM, 5: PIL.Image.Transpose.TRANSPOSE,
             6: PIL.Image.Transpose.ROTATE_270, 7: PIL.Image.Transpose.TRANSVERSE,
             8: PIL.Image.Transpose.ROTATE_90}  # fmt: skip
    original = PIL.Image.fromarray(upright)
    expected = np.asarray(original.transpose(moves[orientation]) if orientation in moves else original)
    assert (codecs.decode(raw, upright=True) == expected).all()
    assert (codecs.decode(raw) == upright).all()


@pytest.mark.parametrize("raw", [b"", b"nothing", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"])
def test_refuses_invalid_images(raw, decoder):
    with pytest.raises(ValueError, match=r"imdecode: (there are no bytes|these \d bytes, which begin with)"):
        mx.image.imdecode(raw)


def test_names_the_file_that_is_not_an_image(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"text")
    with pytest.raises(ValueError, match=r"imread: .*a.jpg': imdecode: these 4 bytes"):
        mx.image.imread(tmp_path / "a.jpg")
    with pytest.raises(FileNotFoundError):
        mx.image.imread(tmp_path / "b.jpg")
    with pytest.raises(ValueError, match="buf is str, expected bytes"):
        mx.image.imdecode("text")
    with pytest.raises(ValueError, match="flag is 5"):
        mx.image.imdecode(b"text", flag=5)


def test_a_jpeg_without_pixels_is_an_error(decoder):
    raw = (FILES / "0.jpg").read_bytes()
    with pytest.raises(ValueError, match="cannot be decoded as an image"):
        codecs.decode(raw[: raw.index(b"\xff\xda")])


def test_names_the_package_to_install_without_a_decoder(monkeypatch, decoder):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="pip install pillow simplejpeg"):
        codecs.decode(png_header())


def png_header():
    return b"\x89PNG\r\n\x1a\n" + bytes(20)


# -- sizes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", recorded.CALLS)
def test_results_match_mxnet(name, image):
    function, arguments = recorded.CALLS[name]
    shape, digest, box = EXPECTED["calls"][name]
    result = getattr(mx.image, function)(image, *arguments)
    result, crop = result if isinstance(result, tuple) else (result, None)
    assert list(result.shape) == shape and (crop is None or list(crop) == box)
    assert recorded.digest(result.asnumpy()) == digest


@pytest.mark.parametrize("interp", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_the_compiled_resize_matches_the_plain_one(interp, channels):
    sizes = [(34, 46, 20, 27), (17, 30, 64, 70), (100, 90, 30, 200), (5, 16, 16, 16), (1, 1, 20, 20), (300, 2, 20, 33)]
    for h, w, new_h, new_w in sizes:
        full = np.random.default_rng(h).integers(0, 256, (h + 3, w + 5, channels), np.uint8)
        part = full[1 : h + 1, 2 : w + 2]
        fast, plain = np.zeros((2, new_h, new_w, channels), np.uint8)
        opencv_resize.resize(np, part, plain, interp)
        is_compiled = resizing.resize(part, fast, interp)
        assert is_compiled == (interp != 3 or new_h > h or new_w > w)
        assert not is_compiled or (fast == plain).all()


def test_scales_sizes_down():
    assert mx.image.scale_down((640, 480), (720, 120)) == (640, 106)
    assert mx.image.scale_down((360, 1000), (480, 500)) == (360, 375)
    assert mx.image.scale_down((300, 400), (0, 0)) == (0, 0)


def test_random_crops_are_parts_of_the_image(image):
    whole = image.asnumpy()
    for _ in range(20):
        part, (x, y, w, h) = mx.image.random_crop(image, (20, 17))
        assert (w, h) == (20, 17)
        assert (part.asnumpy() == whole[y : y + 17, x : x + 20]).all()
        part, (x, y, w, h) = mx.image.random_size_crop(image, (20, 17), (0.3, 0.8), (0.75, 1.33))
        assert part.shape == (17, 20, 3) and 0 <= x <= 34 - w and 0 <= y <= 46 - h
        assert 0.2 < w * h / (34 * 46) < 0.9
    with pytest.warns(DeprecationWarning, match="use `area`"):
        mx.image.random_size_crop(image, (4, 4), 0.5, (1, 1), min_area=0.5)
    with pytest.raises(TypeError, match=r"unexpected arguments \['color'\]"):
        mx.image.random_size_crop(image, (4, 4), 0.5, (1, 1), color=1)


def test_refuses_unknown_interpolations(image):
    with pytest.raises(ValueError, match="interpolation is 7, expected 0 to 4"):
        mx.image.imresize(image, 4, 4, 7)
    with pytest.raises(ValueError, match="type is 7"):
        mx.image.copyMakeBorder(image, 1, 1, 1, 1, 7)


def test_rotates_by_quarters():
    image = mx.nd.array(np.arange(2 * 5 * 5).reshape(2, 5, 5))
    turned = mx.image.imrotate(image, 90).asnumpy()
    assert np.allclose(turned, np.rot90(image.asnumpy(), 1, (1, 2)), atol=1e-3) or np.allclose(
        turned, np.rot90(image.asnumpy(), -1, (1, 2)), atol=1e-3
    )
    batch = mx.nd.stack(image, image)
    both = mx.image.imrotate(batch, mx.nd.array([0, 90])).asnumpy()
    assert np.allclose(both[0], image.asnumpy(), atol=1e-3) and np.allclose(both[1], turned, atol=1e-3)


def test_zooms_in_until_no_border_is_visible():
    image = mx.nd.ones((1, 20, 20))
    assert mx.image.imrotate(image, 30).asnumpy().min() == 0
    assert mx.image.imrotate(image, 30, zoom_in=True).asnumpy().min() > 0.99
    assert mx.image.imrotate(image, 30, zoom_out=True).asnumpy().sum() < 400 * 0.7
    assert mx.image.random_rotate(image, (5, 40), zoom_in=True).asnumpy().min() > 0.99


@pytest.mark.parametrize(
    ("shape", "angle", "options", "error", "message"),
    [
        ((1, 4, 4), 3, {"zoom_in": True, "zoom_out": True}, ValueError, "both True"),
        ((4, 4), 3, {}, ValueError, "expected 3 axes, or 4"),
        ((1, 4, 4), [1, 2], {}, TypeError, "several angles"),
        ((2, 1, 4, 4), [1, 2, 3], {}, ValueError, "3 angles for 2 images"),
    ],
)
def test_refuses_to_rotate(shape, angle, options, error, message):
    with pytest.raises(error, match=message):
        mx.image.imrotate(mx.nd.zeros(shape), angle, **options)
    with pytest.raises(TypeError, match="dtype uint8, expected float32"):
        mx.image.imrotate(mx.nd.zeros((1, 4, 4), dtype="uint8"), 3)


# -- augmenters --------------------------------------------------------------------------------------------


def test_describes_augmenters_like_mxnet():
    augmenters = mx.image.CreateAugmenter((3, 8, 9), resize=12, rand_crop=True, rand_mirror=True, mean=True, std=True)
    assert [augmenter.dumps() for augmenter in augmenters] == EXPECTED["dumps"]
    augmenters = mx.image.CreateDetAugmenter((3, 8, 9), rand_crop=0.5, rand_pad=0.5, rand_mirror=True, mean=True)
    assert [json.loads(json.dumps(augmenter.dumps())) for augmenter in augmenters] == EXPECTED["det dumps"]


def test_augmenters_follow_the_seed(image):
    def run(augmenters=None):
        augmenters = augmenters or mx.image.CreateAugmenter(
            (3, 16, 17), rand_crop=True, rand_resize=True, rand_mirror=True, mean=True, std=True, brightness=0.2,
            contrast=0.2, saturation=0.2, hue=0.1, pca_noise=0.1, rand_gray=0.3, inter_method=10,
        )  # fmt: skip
        outputs = []
        for _ in range(5):
            result = image
            for augmenter in augmenters:
                result = augmenter(result)
            outputs.append(result.asnumpy())
        return np.array(outputs)

    seed_all(3)
    first = run()
    state = rng.all_states()
    second = run()
    seed_all(3)
    assert first.shape == (5, 16, 17, 3) and (run() == first).all() and (second != first).any()
    rng.set_all_states(json.loads(json.dumps(state)))
    assert (run() == second).all()


def test_jitters_change_only_their_property():
    mx.random.seed(1)
    image = mx.nd.array(np.random.default_rng(0).uniform(0, 255, (6, 7, 3)))
    before = image.asnumpy().copy()
    gray = before @ [0.299, 0.587, 0.114]
    bright = mx.image.BrightnessJitterAug(0.5)(image.copy()).asnumpy() / before
    assert np.allclose(bright, bright[0, 0, 0], rtol=1e-4) and 0.5 <= bright[0, 0, 0] <= 1.5
    contrast = mx.image.ContrastJitterAug(0.5)(image.copy()).asnumpy()
    share = (contrast - gray.mean()) / (before - gray.mean())
    assert np.allclose(share, np.median(share), rtol=0.01)
    saturated = mx.image.SaturationJitterAug(0.5)(image.copy()).asnumpy()
    share = (saturated - gray[:, :, None]) / (before - gray[:, :, None])
    assert np.allclose(share, np.median(share), rtol=0.05)
    hue = mx.image.HueJitterAug(0.5)(image.copy()).asnumpy()
    assert np.abs(hue @ [0.299, 0.587, 0.114] - gray).max() < 3
    light = mx.image.LightingAug(0.5, np.ones(3), np.eye(3))(image.copy()).asnumpy() - before
    assert np.allclose(light, light[0, 0], atol=1e-3) and light.any()
    colorless = mx.image.RandomGrayAug(1)(image).asnumpy()
    assert np.allclose(colorless[:, :, :1], colorless)
    flipped = mx.image.SequentialAug([mx.image.HorizontalFlipAug(1), mx.image.CastAug("int32")])(image).asnumpy()
    assert flipped.dtype == np.int32 and (flipped == before[:, ::-1].astype(int)).all()
    assert mx.image.ForceResizeAug((5, 4))(image).shape == (4, 5, 3)


def test_refuses_augmenters():
    with pytest.raises(ValueError, match="needs rand_crop=True"):
        mx.image.CreateAugmenter((3, 4, 4), rand_resize=True)
    with pytest.raises(ValueError, match=r"mean has shape \(2,\)"):
        mx.image.CreateAugmenter((3, 4, 4), mean=np.zeros(2))
    with pytest.raises(NotImplementedError, match="must implement __call__"):
        mx.image.Augmenter()(None)


# -- batches -----------------------------------------------------------------------------------------------


def image_list():
    return [[k % 3, f"{k}.jpg"] for k in range(7)]


def make_iterator(**arguments):
    options = {"path_root": FILES, "imglist": image_list(), "batch_size": 3, "data_shape": (3, 24, 20), **arguments}
    return mx.image.ImageIter(**options)


def labels(iterator):
    return [(batch.label[0].asnumpy().tolist(), batch.pad) for batch in iterator]


def test_all_sources_yield_the_same(tmp_path):
    (tmp_path / "a.lst").write_text("".join(f"{k}\t{label}\t{name}\n" for k, (label, name) in enumerate(image_list())))
    expected = [batch.data[0].asnumpy() for batch in make_iterator()]
    for source in (
        {"imglist": None, "path_imglist": tmp_path / "a.lst"},
        {"imglist": None, "path_imgrec": REC},
        {"imglist": None, "path_imgrec": REC, "path_imgidx": IDX},
        {"imglist": None, "path_imgrec": REC, "path_imglist": tmp_path / "a.lst"},
    ):
        iterator = make_iterator(**source)
        batches = list(iterator)
        assert all((batch.data[0].asnumpy() == data).all() for batch, data in zip(batches, expected, strict=True))
        iterator.reset()
        assert labels(iterator) == [([0, 1, 2], 0), ([0, 1, 2], 0), ([0, 0, 1], 2)]


def test_last_batches():
    iterator = make_iterator(last_batch_handle="discard")
    assert labels(iterator) == [([0, 1, 2], 0), ([0, 1, 2], 0)]
    iterator = make_iterator(last_batch_handle="roll_over")
    assert labels(iterator) == [([0, 1, 2], 0), ([0, 1, 2], 0)]
    iterator.reset()
    assert labels(iterator) == [([0, 0, 1], 2), ([2, 0, 1], 0)]
    iterator.hard_reset()
    assert labels(iterator) == [([0, 1, 2], 0), ([0, 1, 2], 0)]
    iterator = make_iterator(batch_size=10)
    assert labels(iterator) == [([0, 1, 2, 0, 1, 2, 0, 0, 1, 2], 3)]


def test_parts_and_several_labels():
    iterator = make_iterator(num_parts=2, part_index=1)
    assert labels(iterator) == [([0, 1, 2], 0)]
    iterator = make_iterator(imglist=[[1, 2, "0.jpg"], [[3, 4], "1.jpg"]], label_width=2, batch_size=2, dtype="int32")
    (batch,) = list(iterator)
    assert batch.label[0].asnumpy().tolist() == [[1, 2], [3, 4]] and batch.label[0].dtype is np.int32


@pytest.mark.parametrize("handle", ["pad", "discard", "roll_over"])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_resumes_from_a_state(handle, count):
    options = {"shuffle": True, "rand_crop": True, "rand_mirror": True, "last_batch_handle": handle}
    options |= {"brightness": 0.3, "contrast": 0.2, "saturation": 0.2, "pca_noise": 0.1}

    def run(iterator, total):
        batches = []
        while len(batches) < total:
            try:
                batch = iterator.next()
                batches.append((batch.data[0].asnumpy(), batch.label[0].asnumpy().tolist(), batch.pad))
            except StopIteration:
                iterator.reset()
        return batches

    seed_all(4)
    complete = run(make_iterator(**options), 7)
    seed_all(4)
    iterator = make_iterator(**options)
    run(iterator, count)
    state = json.loads(json.dumps(iterator.state()))
    seed_all(99)
    resumed = make_iterator(**options)
    resumed.set_state(state)
    for batches, expected in zip(run(resumed, 7 - count), complete[count:], strict=True):
        assert (batches[0] == expected[0]).all() and batches[1:] == expected[1:]


async def test_async_for():
    assert [batch.pad async for batch in make_iterator()] == [0, 0, 2]


def test_a_subclass_may_replace_a_step():
    class Marked(mx.image.ImageIter):
        def augmentation_transform(self, data):
            return super().augmentation_transform(data) * 0 + 7

    iterator = Marked(3, (3, 8, 8), path_root=FILES, imglist=image_list())
    assert (iterator.next().data[0].asnumpy() == 7).all()
    assert iterator.iter_next() and iterator.getdata().shape == (3, 3, 8, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"imglist": None}, "path_imgrec, path_imglist and imglist"),
        ({"data_shape": (1, 4, 4)}, r"data_shape is \(1, 4, 4\), expected \(3, height, width\)"),
        ({"dtype": "uint8"}, "dtype is 'uint8'"),
        ({"last_batch_handle": "keep"}, "last_batch_handle is 'keep'"),
        ({"num_parts": 9}, "there are no images"),
        ({"num_parts": 2, "part_index": 3}, "part_index is 3"),
    ],
)
def test_refuses_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_iterator(**arguments)


def test_names_the_damaged_image(tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"bad")
    with pytest.raises(ValueError, match=r"ImageIter: image 'bad.jpg': imdecode: these 3 bytes"):
        make_iterator(path_root=tmp_path, imglist=[[0, "bad.jpg"]]).next()
    with pytest.raises(ValueError, match=r"has 2 label\(s\), but label_width is 1"):
        make_iterator(imglist=[[0, 1, "0.jpg"]]).next()


# -- boxes -------------------------------------------------------------------------------------------------

BOXES = [2, 5, 1, 0.1, 0.2, 0.5, 0.6, 3, 0.4, 0.4, 0.9, 0.8]


def boxes():
    return np.array(BOXES[2:], np.float32).reshape(-1, 5)


def make_image():
    """Return an image of one color with a white box at the first object."""
    image = np.full((100, 200, 3), 50, np.uint8)
    image[20:60, 20:100] = 255
    return mx.nd.array(image, dtype="uint8")


def white_box(image):
    """Return the bounding box of the white part of an image, as fractions of its sides."""
    bright = image.asnumpy()[:, :, 0] > 150
    rows, columns = np.where(bright.any(1))[0], np.where(bright.any(0))[0]
    h, w = bright.shape
    return np.array([columns[0] / w, rows[0] / h, (columns[-1] + 1) / w, (rows[-1] + 1) / h])


@pytest.mark.parametrize(
    "augmenter",
    [
        lambda: mx.image.DetHorizontalFlipAug(1),
        lambda: mx.image.DetRandomCropAug(0.3, area_range=(0.3, 0.9)),
        lambda: mx.image.DetRandomPadAug(area_range=(1.5, 3.0)),
        lambda: mx.image.DetRandomSelectAug([mx.image.DetHorizontalFlipAug(1), mx.image.DetRandomCropAug()], 0.3),
        lambda: mx.image.CreateMultiRandCropAugmenter([0.1, 0.5], skip_prob=0.2),
    ],
)
def test_boxes_stay_on_their_objects(augmenter):
    mx.random.seed(7)
    augment, changed = augmenter(), 0
    for _ in range(40):
        image, label = augment(make_image(), boxes())
        first = label[label[:, 0] == 1]
        changed += image.shape != (100, 200, 3) or not np.allclose(label, boxes())
        if len(first):
            assert np.abs(first[0, 1:] - white_box(image)).max() < 0.03
    assert changed > 10


def test_augmenters_with_impossible_ranges_do_nothing():
    with pytest.warns(UserWarning, match="DetRandomCropAug does nothing: its area_range"):
        crop = mx.image.DetRandomCropAug(area_range=(2, 1))
    with pytest.warns(UserWarning, match="DetRandomPadAug does nothing: its aspect_ratio_range"):
        pad = mx.image.DetRandomPadAug(aspect_ratio_range=-1)
    for augment in (crop, pad):
        assert augment(make_image(), boxes())[0].shape == (100, 200, 3)
    with pytest.raises(TypeError, match="augmenter is int"):
        mx.image.DetBorrowAug(3)
    with pytest.raises(ValueError, match="may only hold DetAugmenters"):
        mx.image.DetRandomSelectAug([mx.image.CastAug()])
    with pytest.raises(ValueError, match="expected 1 or 3"):
        mx.image.CreateMultiRandCropAugmenter([0.1, 0.2], area_range=[(0.1, 1), (0.2, 1), (0.3, 1)])


def detection_iterator(**arguments):
    files = [[[*BOXES], "0.jpg"], [BOXES[:7], "1.jpg"], [BOXES[:7], "2.jpg"]]
    return mx.image.ImageDetIter(2, (3, 24, 20), path_root=FILES, imglist=files, **arguments)


def test_batches_with_boxes():
    iterator = detection_iterator(rand_mirror=True, mean=True)
    assert iterator.label_shape == (2, 5) and tuple(iterator.provide_label[0]) == ("label", (2, 2, 5))
    first, last = list(iterator)
    assert first.data[0].shape == (2, 3, 24, 20) and last.pad == 1
    labels = first.label[0].asnumpy()
    assert labels[:, :, 0].tolist() == [[1, 3], [1, -1]] and (labels[1, 1] == -1).all()


def test_label_shapes_can_be_synchronized():
    iterator, other = detection_iterator(), detection_iterator()
    other.reshape(data_shape=(3, 24, 20), label_shape=(5, 5))
    assert iterator.sync_label_shape(other) is other
    assert iterator.label_shape == other.label_shape == (5, 5)
    assert iterator.next().label[0].shape == (2, 5, 5)
    with pytest.raises(ValueError, match=r"label_shape is \(1, 5\), expected \(at least 5, 5\)"):
        iterator.reshape(label_shape=(1, 5))
    with pytest.raises(TypeError, match="it is int"):
        iterator.sync_label_shape(3)


def test_draws_boxes():
    pictures = list(detection_iterator().draw_next(id2labels={1: "one"}, color=(255, 0, 0)))
    assert len(pictures) == 3 and pictures[0].shape == (24, 20, 3) and pictures[0].dtype == np.uint8
    assert (pictures[0] == [0, 0, 255]).all(2).any()  # blue first


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ([2, 5, 1], "3 numbers, expected at least 7"),
        ([2, 5, 1, 0.1, 0.2, 0.3, 0.4, 9], "a multiple of 5"),
        ([2, 5, 1, 0.5, 0.2, 0.3, 0.4], "no object with an area"),
    ],
)
def test_refuses_labels_without_boxes(label, message):
    with pytest.raises(RuntimeError, match=message):
        mx.image.ImageDetIter(1, (3, 8, 8), path_root=FILES, imglist=[[label, "0.jpg"]])


def test_the_nearest_rows_match_opencv():
    rows = mx.nd.arange(348).reshape((348, 1, 1))
    resized = mx.image.imresize(rows, 1, 150, interp=0).asnumpy().ravel()
    assert resized[[25, 50, 100]].tolist() == [58, 116, 232], "where x times the scale is an integer"


def test_refuses_a_header_with_gigabytes_of_pixels(decoder):
    raw = bytearray(encode(PIL.Image.new("RGB", (16, 16)), "JPEG"))
    offset = raw.index(b"\xff\xc0") + 5
    raw[offset : offset + 4] = struct.pack(">HH", 65500, 65500)
    for flag in (1, 0, -1):
        with pytest.raises(mx.MXNetError, match=r"65500 x 65500 pixels|exceeds limit|4290250000 pixels"):
            mx.image.imdecode(bytes(raw), flag=flag)
