"""python -m flowmx im2rec: lists and records as MXNet's script writes them, and changes of images."""

import json

import numpy as np
import PIL.Image
import pytest

import flowmx as mx
from flowmx import cli
from flowmx.data import codecs
from tests.fixtures import record_images as recorded

EXPECTED = json.loads((recorded.FOLDER / "recorded.json").read_text())["im2rec"]
FILES = recorded.FOLDER / "files"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "out").mkdir()
    recorded.arrange(tmp_path / "root")
    return tmp_path / "root"


def im2rec(root, *options):
    return cli.main(["im2rec", str(root.parent / "out" / "set"), str(root), *options])


def records(root, name="set"):
    out = root.parent / "out"
    with mx.recordio.MXIndexedRecordIO(out / f"{name}.idx", out / f"{name}.rec", "r") as file:
        return [mx.recordio.unpack(file.read_idx(key)) for key in file.keys]


@pytest.mark.parametrize("calls", recorded.IM2REC, ids=str)
def test_writes_what_mxnets_script_writes(calls, root):
    for options in calls:
        assert im2rec(root, *options) == 0
    assert recorded.outcome(root.parent / "out") == EXPECTED[str(calls)]


def test_a_list_with_the_name_of_the_folder_of_images_is_found(root):
    command = ["im2rec", str(root), str(root)]
    assert cli.main([*command, "--list", "--recursive"]) == 0
    assert cli.main([*command, "--pass-through"]) == 0
    assert root.with_suffix(".rec").stat().st_size > 0


def test_reports_progress(root, capsys):
    im2rec(root, "--list", "--recursive")
    im2rec(root, "--pass-through")
    output = capsys.readouterr().out
    assert "b/c 3" in output and "7 images in" in output and "set.rec: 8" in output


@pytest.mark.parametrize("processes", ["1", "2"])
def test_changes_images(root, processes):
    im2rec(root, "--list", "--recursive", "--no-shuffle")
    assert im2rec(root, "--resize", "20", "--center-crop", "--quality", "90", "--num-thread", processes) == 0
    entries = records(root)
    assert [header.id for header, _ in entries] == list(range(7))
    assert {codecs.decode(raw).shape for _, raw in entries} == {(20, 20, 3)}
    assert im2rec(root, "--encoding", ".png", "--color", "0", "--resize", "17") == 0
    for _, raw in records(root):
        image = codecs.decode(raw, -1)
        assert raw[:4] == b"\x89PNG" and min(image.shape[:2]) == 17 and image.shape[2] == 1


def test_resizes_as_mxnet_would(root):
    im2rec(root, "--list", "--no-shuffle", "--recursive")
    im2rec(root, "--resize", "20", "--encoding", ".png")
    header, raw = records(root)[0]
    first = mx.image.resize_short(mx.image.imread(FILES / "0.jpg"), 20, 1).asnumpy()
    assert header.label == 0 and (codecs.decode(raw) == first).all()


def test_packs_several_labels(root):
    (root.parent / "out" / "set.lst").write_text("3\t1.5\t2\t0.jpg\n9\t4\t0.jpg\n")
    assert im2rec(root, "--pass-through", "--pack-label") == 0
    (first, raw), (second, _) = records(root)
    assert first.label.tolist() == [1.5, 2] and first.flag == 2 and second.label == 4 and second.flag == 0
    assert raw == (FILES / "0.jpg").read_bytes()
    assert im2rec(root, "--pass-through") == 0
    assert records(root)[0][0].label == 1.5


def test_skips_damaged_images_with_a_warning(root, capsys):
    (root / "bad.jpg").write_bytes(b"bad")
    lines = ["0\t1\t0.jpg", "1\t1\tbad.jpg", "2\t1\tnone.jpg", "only\ttwo", "x\t1\t0.jpg", "", "7\t5\t0.jpg"]
    (root.parent / "out" / "set.lst").write_text("\n".join(lines) + "\n")
    assert im2rec(root) == 1
    output = capsys.readouterr().out
    for text in (
        "bad.jpg: imdecode: these 3 bytes",
        "none.jpg",
        "line 4 of",
        "it has 2 parts",
        "line 5 of",
        "4 skipped",
    ):
        assert text in output
    assert [header.id for header, _ in records(root)] == [0, 7]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--list", "--chunks", "0"], "--chunks is 0"),
        (["--list", "--train-ratio", "0.8", "--test-ratio", "0.3"], "a sum of at most 1"),
        (["--list", "--exts", ".gif"], "there are no images"),
        ([], "there is no list"),
    ],
)
def test_refuses(root, options, message, capsys):
    assert im2rec(root, *options) == 1
    assert message in capsys.readouterr().err


def test_refuses_a_missing_folder(tmp_path, capsys):
    assert cli.main(["im2rec", str(tmp_path / "set"), str(tmp_path / "none"), "--list"]) == 1
    assert "expected a folder of images" in capsys.readouterr().err


def test_written_records_can_be_used_for_training(root):
    im2rec(root, "--list", "--recursive")
    im2rec(root, "--resize", "24")
    out = root.parent / "out"
    iterator = mx.io.ImageRecordIter(
        path_imgrec=str(out / "set.rec"), path_imgidx=str(out / "set.idx"), data_shape=(3, 24, 24), batch_size=7
    )
    (batch,) = list(iterator)
    assert sorted(batch.label[0].asnumpy().tolist()) == [0, 0, 1, 1, 2, 2, 3]
    assert np.isfinite(batch.data[0].asnumpy()).all()


def test_gray_and_transparent_images(root):
    PIL.Image.open(FILES / "0.jpg").convert("RGBA").save(root / "clear.png")
    (root.parent / "out" / "set.lst").write_text("0\t0\tclear.png\n")
    for color, channels in (("1", 3), ("0", 1), ("-1", 4)):
        assert im2rec(root, "--color", color, "--encoding", ".png") == 0
        assert codecs.decode(records(root)[0][1], -1).shape[2] == channels
