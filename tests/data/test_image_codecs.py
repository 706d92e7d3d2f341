"""Image files of many formats, intact and damaged, in every interface; compared with MXNet 1.9.1."""

import base64
import io
import json
import logging
import sys
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

import flowmx as mx
from flowmx import settings
from flowmx.data import codecs
from flowmx.gluon.data import DataLoader
from flowmx.gluon.data.vision import ImageFolderDataset, ImageRecordDataset

FORMATS = json.loads((Path(__file__).parent.parent / "fixtures" / "formats.json").read_text())
PICTURES = Path(__file__).parent.parent / "fixtures" / "images" / "files"


@pytest.fixture(params=["simplejpeg", "Pillow"])
def decoder(request, monkeypatch):
    if request.param == "Pillow":
        monkeypatch.setitem(sys.modules, "simplejpeg", None)
    codecs._turbo.cache_clear()
    yield request.param
    codecs._turbo.cache_clear()


@pytest.fixture
def intact():
    return (PICTURES / "0.jpg").read_bytes()


@pytest.fixture
def cut(intact):
    """A JPEG file without its last quarter."""
    return intact[: len(intact) * 3 // 4]


def cut_in_the_header(raw):
    return raw[: raw.index(b"\xff\xda") - 10]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("flag", [0, 1])
def test_decodes_like_mxnet(name, flag, decoder):
    raw = base64.b64decode(FORMATS[name]["file"])
    expected = np.array(FORMATS[name][str(flag)])
    decoded = mx.image.imdecode(raw, flag=flag).asnumpy().astype(int)
    tolerance = 1 if name in ("rgb 16.png", "rgba 16.png") and not flag else 2 if "cmyk" in name else 0
    assert decoded.shape == expected.shape and np.abs(decoded - expected).max() <= tolerance


# -- 16 bits -----------------------------------------------------------------------------------------------


def test_sixteen_bits_give_their_upper_byte_in_every_interface(tmp_path):
    values = np.arange(0, 65536, 4096, dtype=np.uint16).reshape(4, 4)
    file = io.BytesIO()
    PIL.Image.fromarray(values).save(file, "PNG")
    raw, expected = file.getvalue(), (values >> 8).ravel().tolist()
    (tmp_path / "images" / "a").mkdir(parents=True)
    (tmp_path / "images" / "a" / "x.png").write_bytes(raw)
    rec = write_records(tmp_path, [raw] * 2)
    images = {
        "imdecode": mx.image.imdecode(raw, flag=0),
        "as stored": mx.image.imdecode(raw, flag=-1),
        "imread": mx.image.imread(tmp_path / "images" / "a" / "x.png", flag=0),
        "ImageFolderDataset": ImageFolderDataset(str(tmp_path / "images"), flag=0)[0][0],
        "ImageRecordDataset": ImageRecordDataset(rec, flag=0)[0][0],
        "ImageRecordIter": mx.io.ImageRecordIter(path_imgrec=rec, data_shape=(1, 4, 4), batch_size=1).next().data[0],
        "ImageIter": mx.image.ImageIter(1, (3, 4, 4), path_imgrec=rec).next().data[0][0, 0],
    }
    for name, image in images.items():
        assert image.asnumpy().ravel().tolist() == expected, name
    header = mx.recordio.IRHeader(0, 1.0, 0, 0)
    assert mx.recordio.unpack_img(mx.recordio.pack(header, raw))[1].ravel().tolist() == expected


@pytest.mark.parametrize("kind", ["int32", "float32"])
def test_refuses_elements_of_32_bits(kind):
    file = io.BytesIO()
    PIL.Image.fromarray(np.ones((2, 2), kind)).save(file, "TIFF")
    with pytest.raises(codecs.DamagedImageError, match="its elements have 32 bits, expected 8 or 16"):
        mx.image.imdecode(file.getvalue())


# -- Exif --------------------------------------------------------------------------------------------------


def test_only_record_iterators_turn_images(tmp_path):
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    PIL.Image.open(PICTURES / "0.jpg").resize((20, 10)).save(file, "JPEG", exif=exif)
    raw = file.getvalue()
    stored = mx.image.imdecode(raw).asnumpy()
    upright = np.rot90(stored, -1)
    (tmp_path / "folders" / "a").mkdir(parents=True)
    (tmp_path / "folders" / "a" / "x.jpg").write_bytes(raw)
    rec, boxes = write_records(tmp_path, [raw]), write_records(tmp_path, [raw], [2, 5, 0, 0.1, 0.1, 0.9, 0.9], "boxes")
    shape = {"data_shape": (3, 20, 10), "batch_size": 1}
    assert stored.shape == (10, 20, 3)
    for image in (
        mx.image.imread(tmp_path / "folders" / "a" / "x.jpg"),
        ImageFolderDataset(str(tmp_path / "folders"))[0][0],
        ImageRecordDataset(rec)[0][0],
    ):
        assert (image.asnumpy() == stored).all()
    unturned = mx.image.ImageIter(1, (3, 10, 20), path_imgrec=rec).next().data[0][0]
    assert (unturned.asnumpy() == stored.transpose(2, 0, 1)).all()
    for batches in (
        mx.io.ImageRecordIter(path_imgrec=rec, **shape), mx.io.ImageDetRecordIter(path_imgrec=boxes, **shape),
    ):  # fmt: skip
        assert (batches.next().data[0][0].asnumpy() == upright.transpose(2, 0, 1)).all()


# -- damaged files -----------------------------------------------------------------------------------------


def write_records(folder, images, label=1.0, name="images"):
    """Write images to a RecordIO file, with their numbers as labels or with one label for all; return its path."""
    rec = str(folder / f"{name}.rec")
    with mx.recordio.MXIndexedRecordIO(str(folder / f"{name}.idx"), rec, "w") as file:
        for number, raw in enumerate(images):
            number_or_label = float(number) if label == 1.0 else label
            file.write_idx(number, mx.recordio.pack(mx.recordio.IRHeader(0, number_or_label, number, 0), raw))
    return rec


def labels(batches):
    return [label for batch in batches for label in batch.label[0].asnumpy().ravel().tolist()]


@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"restart_marker_blocks": 4}, {"mode": "L"}, {"mode": "CMYK"}]
)
def test_cut_jpegs_are_decoded_as_far_as_possible(options, decoder):
    options = dict(options)
    picture = PIL.Image.open(PICTURES / "0.jpg").convert(options.pop("mode", "RGB"))
    file = io.BytesIO()
    picture.save(file, "JPEG", **options)
    raw = file.getvalue()
    expected = mx.image.imdecode(raw).asnumpy().astype(int)
    scan = raw.index(b"\xff\xda")
    for length in (scan + 40, (scan + len(raw)) // 2, len(raw) - 10, len(raw) - 2, len(raw) - 1):
        decoded = mx.image.imdecode(raw[:length]).asnumpy().astype(int)
        assert decoded.shape == expected.shape
        if not options:  # from top to bottom
            rows = expected.shape[0] * (length - scan) // (len(raw) - scan) // 2
            assert np.abs(decoded - expected)[: rows // 16 * 16 - 2 if rows >= 16 else 0].max(initial=0) == 0
    with pytest.raises(codecs.DamagedImageError):
        mx.image.imdecode(cut_in_the_header(raw))


def test_every_interface_accepts_cut_jpegs(tmp_path, cut, intact):
    (tmp_path / "folders" / "a").mkdir(parents=True)
    (tmp_path / "folders" / "a" / "x.jpg").write_bytes(cut)
    rec = write_records(tmp_path, [intact, cut])
    boxes = write_records(tmp_path, [intact, cut], [2, 5, 0, 0.1, 0.1, 0.9, 0.9], "boxes")
    shape = mx.image.imdecode(intact).shape
    assert mx.image.imdecode(cut).shape == mx.image.imread(tmp_path / "folders" / "a" / "x.jpg").shape == shape
    assert ImageFolderDataset(str(tmp_path / "folders"))[0][0].shape == ImageRecordDataset(rec)[1][0].shape == shape
    assert mx.recordio.unpack_img(mx.recordio.pack(mx.recordio.IRHeader(0, 1.0, 0, 0), cut))[1].shape == shape
    options = {"data_shape": (3, 16, 16), "batch_size": 2}
    assert labels(mx.io.ImageRecordIter(path_imgrec=rec, **options)) == [0, 1]
    assert labels(mx.image.ImageIter(path_imgrec=rec, **options)) == [0, 1]
    assert len(list(mx.io.ImageDetRecordIter(path_imgrec=boxes, **options))) == 1
    assert len(list(mx.image.ImageDetIter(path_imgrec=boxes, **options))) == 1


def test_damaged_images_may_be_refused(tmp_path, cut, intact, decoder):
    rec = write_records(tmp_path, [intact, cut])
    options = {"path_imgrec": rec, "data_shape": (3, 16, 16), "batch_size": 2}
    with pytest.raises(ValueError, match="record 1 of"):
        list(mx.io.ImageRecordIter(**options, damaged_images="raise"))
    with pytest.raises(ValueError, match="ImageIter: the record at offset"):
        list(mx.image.ImageIter(**options, damaged_images="raise"))
    with settings.override(damaged_images="raise"), pytest.raises(codecs.DamagedImageError):
        mx.image.imdecode(cut)
    with pytest.raises(ValueError, match="damaged_images is 'drop', expected one of"):
        mx.io.ImageRecordIter(**options, damaged_images="drop")


def test_damaged_images_may_be_skipped(tmp_path, cut, intact, caplog):
    rec = write_records(tmp_path, [intact, cut, b"", b"no image", intact, intact])
    options = {"path_imgrec": rec, "data_shape": (3, 16, 16), "batch_size": 2}
    with caplog.at_level(logging.WARNING):
        assert labels(mx.io.ImageRecordIter(**options, damaged_images="skip")) == [0, 4, 4, 4, 4, 5]
        assert labels(mx.image.ImageIter(**options, damaged_images="skip", last_batch_handle="discard")) == [0, 4]
    assert "record 2 of" in caplog.text and "there are no bytes" in caplog.text
    with settings.override(damaged_images="skip"):
        batches = list(DataLoader(ImageRecordDataset(rec), 2, last_batch="keep", sampler=[0, 1, 4, 2, 5]))
        assert [batch[1].asnumpy().tolist() for batch in batches] == [[0], [4], [5]]


def test_a_file_with_only_damaged_images_is_an_error(tmp_path):
    rec = write_records(tmp_path, [b"no image"] * 3)
    options = {"path_imgrec": rec, "data_shape": (3, 16, 16), "batch_size": 2, "damaged_images": "skip"}
    with pytest.raises(ValueError, match="cannot be decoded as an image"):
        next(mx.io.ImageRecordIter(**options))
    with pytest.raises(StopIteration):
        mx.image.ImageIter(**options).next()
