"""Data sets of images from files, and transforms compared with MXNet's."""

import gzip
import io
import json
import pickle
import struct
import tarfile

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon import data
from flowmx.gluon.data import vision
from flowmx.gluon.data.vision import transforms
from tests.fixtures import record_transforms as recorded
from tests.seeding import seed_all

EXPECTED = json.loads(recorded.FILE.read_text())
RANDOM = [
    transforms.RandomFlipLeftRight(), transforms.RandomFlipTopBottom(), transforms.RandomBrightness(0.5),
    transforms.RandomContrast(0.5), transforms.RandomSaturation(0.5), transforms.RandomHue(0.3),
    transforms.RandomColorJitter(0.3, 0.3, 0.3, 0.3), transforms.RandomLighting(0.5), transforms.RandomGray(0.5),
    transforms.RandomResizedCrop((18, 12)), transforms.RandomCrop((18, 12), pad=2, pad_value=3),
    transforms.RandomApply(transforms.RandomBrightness(0.9), 0.5),
    transforms.HybridRandomApply(transforms.RandomBrightness(0.9), 0.5),
]  # fmt: skip


def name(change):
    return type(change).__name__


def make_image():
    return mx.nd.array(recorded.image(), dtype="uint8")


# -- transforms --------------------------------------------------------------------------------------------


def test_transforms_match_mxnet():
    results = recorded.applied(transforms, mx.nd)
    assert results.keys() == EXPECTED.keys()
    for case, (shape, dtype, values) in EXPECTED.items():
        assert results[case][:2] == [shape, dtype], case
        assert np.allclose(results[case][2], values, atol=1e-5), case


@pytest.mark.parametrize("change", RANDOM, ids=name)
def test_random_transforms_follow_the_seed_and_do_not_change_their_input(change):
    image = make_image()

    def run():
        seed_all(8)
        return [change(image).asnumpy() for _ in range(12)]

    first, second = run(), run()
    assert all((one == two).all() for one, two in zip(first, second, strict=True))
    assert len({output.tobytes() for output in first}) > 1
    assert all(output.shape == (12, 18, 3) and output.dtype == np.uint8 for output in first)
    assert (image.asnumpy() == recorded.image()).all()


def test_random_changes_stay_in_their_range():
    white = mx.nd.full((4, 4, 3), 100.0)
    factors = [transforms.RandomBrightness(0.25)(white).asnumpy().max() / 100 for _ in range(50)]
    assert 0.75 <= min(factors) < 0.9 and 1.1 < max(factors) <= 1.25
    halves = [transforms.RandomApply([transforms.RandomBrightness(0)], 0.0)(white) is white for _ in range(9)]
    assert all(halves)
    turned = transforms.RandomRotation((-30, 30), rotate_with_proba=0)
    assert turned(white) is white
    flips = [
        bool((transforms.RandomFlipTopBottom()(make_image()).asnumpy() == recorded.image()).all()) for _ in range(40)
    ]
    assert 8 < sum(flips) < 32


def test_composed():
    change = transforms.Compose(
        [transforms.Resize(10), transforms.CenterCrop((8, 6)), transforms.ToTensor(), transforms.Normalize(0.5, 0.25)]
    )
    change.hybridize()
    output = change(make_image())
    assert output.shape == (3, 6, 8) and output.dtype is np.float32
    assert (pickle.loads(pickle.dumps(change))(make_image()).asnumpy() == output.asnumpy()).all()
    composed = transforms.HybridCompose(
        [transforms.Resize((8, 6)), transforms.RandomFlipLeftRight(), transforms.ToTensor()]
    )
    composed.hybridize()
    assert composed(make_image()).shape == (3, 6, 8)
    with pytest.raises(TypeError, match="must be HybridBlocks"):
        transforms.HybridCompose([transforms.CenterCrop(3)])


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_composed_transforms_are_bit_equal_to_single_ones(dtype):
    """A sequence may be computed at once, without the engine, if the array's content is ready."""
    changes = [
        transforms.RandomFlipLeftRight(), transforms.RandomFlipTopBottom(), transforms.Cast("uint8"),
        transforms.ToTensor(), transforms.Normalize((0.1, 0.2, 0.3), 0.7), transforms.Cast("float16"),
    ]  # fmt: skip
    ramp = np.arange(256, dtype=dtype).repeat(3).reshape(16, 16, 3)
    for image in (ramp, recorded.image().astype(dtype)):
        array = mx.nd.array(image, dtype=dtype)
        array.wait_to_read()
        for length in range(1, len(changes) + 1):
            mx.random.seed(length)
            expected = array
            for change in changes[:length]:
                expected = change(expected)
            mx.random.seed(length)
            output = transforms.Compose(changes[:length])(array)
            assert output.dtype is expected.dtype and (output.asnumpy() == expected.asnumpy()).all()
            output[:] = 0
            assert (array.asnumpy() == image).all()
    with pytest.raises(mx.errors.ShapeError, match="image_to_tensor"):
        transforms.Compose([transforms.ToTensor()])(mx.nd.zeros((3, 3)))
    with pytest.raises(mx.errors.ShapeError, match="mean has 2 values"):
        transforms.Compose([transforms.Normalize((1, 2))])(mx.nd.zeros((3, 3, 3)))


@pytest.mark.parametrize("change", [change for change in RANDOM if isinstance(change, mx.gluon.HybridBlock)], ids=name)
def test_random_transforms_compose_with_symbols(change):
    mx.random.seed(3)
    symbol = change(mx.sym.Variable("x"))
    (output,) = symbol.eval(x=make_image().astype("float32"))
    assert output.shape == (12, 18, 3)


def test_refuses_rotations():
    with pytest.raises(TypeError, match="expected float32"):
        transforms.Rotate(30)(mx.nd.zeros((3, 4, 4), dtype="uint8"))
    with pytest.raises(ValueError, match="the smaller angle first"):
        transforms.RandomRotation((3, 1))
    with pytest.raises(ValueError, match="expected 0 to 1"):
        transforms.RandomRotation((1, 3), rotate_with_proba=2)


# -- data sets ---------------------------------------------------------------------------------------------


def idx(values):
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("kind", [vision.MNIST, vision.FashionMNIST])
def test_digits(tmp_path, kind):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 28, 28), np.uint8)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels)))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.arange(5, dtype=np.uint8)))
    dataset = kind(root=tmp_path)
    image, label = dataset[3]
    assert len(dataset) == 5 and label == 3 and label.dtype == np.int32
    assert image.shape == (28, 28, 1) and (image.asnumpy()[:, :, 0] == pixels[3]).all()
    assert kind(tmp_path, transform=lambda image, label: (image.shape, -label))[2] == ((28, 28, 1), -2)
    images, labels = next(iter(data.DataLoader(dataset.transform_first(transforms.ToTensor()), 5)))
    assert images.shape == (5, 1, 28, 28) and labels.dtype is np.int32
    with mx.util.np_array():
        images, labels = kind(tmp_path)[1:4]
    assert isinstance(images, mx.np.ndarray) and labels.tolist() == [1, 2, 3] and labels.dtype == np.int32
    with pytest.raises(FileNotFoundError, match=r"copy it to .*t10k-images-idx3-ubyte.gz"):
        kind(root=tmp_path, train=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.arange(4, dtype=np.uint8)))
    with pytest.raises(ValueError, match=r"has 5 images and .* 4 labels"):
        kind(root=tmp_path)


def cifar(labels, count, start=0):
    rng = np.random.default_rng(start)
    rows = rng.integers(0, 256, (count, labels + 3072), np.uint8)
    rows[:, :labels] = np.arange(start, start + count)[:, None] + np.arange(labels) * 10
    return rows


@pytest.mark.usefixtures("offline")
def test_cifar10(tmp_path):
    batches = [cifar(1, 2, 2 * part) for part in range(5)]
    for number, rows in enumerate(batches, 1):
        (tmp_path / f"data_batch_{number}.bin").write_bytes(rows.tobytes())
    dataset = vision.CIFAR10(root=tmp_path)
    assert len(dataset) == 10 and [int(dataset[i][1]) for i in range(10)] == list(range(10))
    image = dataset[3][0].asnumpy()
    assert (image[4, 5] == batches[1][1, 1:].reshape(3, 32, 32)[:, 4, 5]).all() and image.dtype == np.uint8
    with pytest.raises(FileNotFoundError, match=r"copy it to .*cifar-10-binary.tar.gz"):
        vision.CIFAR10(root=tmp_path, train=False)
    (tmp_path / "data_batch_2.bin").write_bytes(b"short")
    with pytest.raises(ValueError, match=r"data_batch_2.bin .* has 5 bytes, expected a multiple of 3073"):
        vision.CIFAR10(root=tmp_path)


def test_cifar100_from_its_archive(tmp_path):
    raw = cifar(2, 3).tobytes()
    with tarfile.open(tmp_path / "cifar-100-binary.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("cifar-100-binary/test.bin")
        member.size = len(raw)
        tar.addfile(member, io.BytesIO(raw))
    coarse, fine = (vision.CIFAR100(root=tmp_path, train=False, fine_label=fine) for fine in (False, True))
    assert [int(label) for _, label in (coarse[i] for i in range(3))] == [0, 1, 2]
    assert [int(label) for _, label in (fine[i] for i in range(3))] == [10, 11, 12]
    with pytest.raises(ValueError, match=r"is damaged, or lacks one of train.bin"):
        vision.CIFAR100(root=tmp_path)


@pytest.fixture
def pictures(tmp_path):
    """Return five images, after writing them to a folder for each of two classes and to a RecordIO file."""
    images = [np.full((4, 5, 3), 40 * number, np.uint8) for number in range(5)]
    with mx.recordio.MXIndexedRecordIO(tmp_path / "a.idx", tmp_path / "a.rec", "w") as file:
        for number, picture in enumerate(images):
            record = mx.recordio.pack_img((0, float(number % 2), number, 0), picture, 3, ".png")
            file.write_idx(number, record)
            folder = tmp_path / "all" / ("even", "odd")[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.png").write_bytes(mx.recordio.unpack(record)[1])
    return images


def test_images_from_records(tmp_path, pictures):
    dataset = vision.ImageRecordDataset(str(tmp_path / "a.rec"))
    assert len(dataset) == 5
    assert all((dataset[i][0].asnumpy() == pictures[i]).all() and dataset[i][1] == i % 2 for i in range(5))
    assert vision.ImageRecordDataset(tmp_path / "a.rec", flag=0)[1][0].shape == (4, 5, 1)
    images, labels = next(iter(data.DataLoader(dataset, 5, num_workers=1)))
    assert images.shape == (5, 4, 5, 3) and labels.asnumpy().tolist() == [0, 1, 0, 1, 0]
    changed = vision.ImageRecordDataset(tmp_path / "a.rec", transform=lambda image, label: label + 5)
    assert changed[1] == 6


def test_images_from_folders(tmp_path, pictures):
    dataset = vision.ImageFolderDataset(tmp_path / "all")
    assert dataset.synsets == ["even", "odd"] and len(dataset) == 5
    assert [label for _, label in dataset.items] == [0, 0, 0, 1, 1]
    assert (dataset[3][0].asnumpy() == pictures[1]).all()
    (tmp_path / "all" / "odd" / "notes.txt").write_text("")
    with pytest.warns(UserWarning, match=r"notes.txt' is skipped: its suffix is not .jpg"):
        vision.ImageFolderDataset(str(tmp_path / "all"))
    (tmp_path / "all" / "odd" / "notes.txt").rename(tmp_path / "all" / "notes.txt")
    with pytest.warns(UserWarning, match=r"notes.txt' is not a folder"):
        vision.ImageFolderDataset(str(tmp_path / "all"))


def test_images_from_lists(tmp_path, pictures):
    (tmp_path / "a.lst").write_text("0\t1\t2.5\teven/2.png\n1\t3\t4\todd/1.png\n")
    for source in (tmp_path / "a.lst", [[[1, 2.5], "even/2.png"], [3, 4, "odd/1.png"]]):
        dataset = vision.ImageListDataset(tmp_path / "all", source)
        assert len(dataset) == 2
        image, label = dataset[0]
        assert (image.asnumpy() == pictures[2]).all() and label.tolist() == [1, 2.5] and label.dtype == np.float32
        assert dataset[1][1].tolist() == [3, 4]
    with pytest.raises(ValueError, match=r"entry 2 is \['x.png'\], expected label"):
        vision.ImageListDataset(tmp_path, [[1, "a.png"], ["x.png"]])
    with pytest.raises(ValueError, match="imglist is missing"):
        vision.ImageListDataset(tmp_path)
    with pytest.raises(FileNotFoundError):
        vision.ImageListDataset(tmp_path, "none.lst")
