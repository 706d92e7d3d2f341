"""Small stand-ins of the data sets that "Dive into Deep Learning" downloads, in the forms of the real ones.

:func:`content` answers for an address; :func:`images` for the sets that Gluon downloads. All of it is drawn at random,
but so that there is something to learn.
"""

from __future__ import annotations

import csv
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterable

import numpy as np

Files = dict[str, bytes]
_TEXT = """the of and to in a time traveller was it is his that with had for at as i my he you on all this but from
were not by she me they be one there their an upon then would so them machine little came or if no when through could
very more seemed out up into now great world some what saw still your down again like light dark hand long night white
morlocks weena felt thought said man day sun before over moment good bad film story actor movie"""
_WORDS = _TEXT.split()
_rng = np.random.default_rng(0)


def content(address: str) -> bytes:
    """The bytes that are downloaded from an address: an archive, or a file.

    Raises:
        KeyError: nothing stands for that file.
    """
    name = address.rpartition("/")[2]
    archive = _MADE[name]()
    if isinstance(archive, bytes):
        return archive
    return _zipped(archive) if name.endswith(".zip") else _tarred(archive)


def images(shape: tuple[int, ...], train: bool, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images of ten classes, each close to one pattern, and their labels."""
    patterns = np.random.default_rng(7).random((10, *shape)) ** 4
    draw = np.random.default_rng(1 + train)
    labels = draw.permutation(np.arange(count, dtype=np.int32) % 10)
    noisy = 200 * patterns[labels] + 40 * draw.random((count, *shape), np.float32)
    return noisy.astype(np.uint8), labels


def picture(height: int, width: int, seed: int = 0, kind: str = ".jpg") -> bytes:
    """A picture with a few patches, encoded."""
    draw = np.random.default_rng(seed)
    patches = draw.integers(0, 255, (-(-height // 16), -(-width // 16), 3)).astype(np.uint8)
    return _encoded(np.kron(patches, np.ones((16, 16, 1), np.uint8))[:height, :width], kind)


def _encoded(pixels: np.ndarray, kind: str) -> bytes:
    from PIL import Image

    to = io.BytesIO()
    Image.fromarray(pixels).save(to, {".jpg": "JPEG", ".png": "PNG"}[kind])
    return to.getvalue()


def _zipped(files: Files) -> bytes:
    to = io.BytesIO()
    with zipfile.ZipFile(to, "w") as archive:
        for name, each in files.items():
            archive.writestr(name, each)
    return to.getvalue()


def _tarred(files: Files) -> bytes:
    to = io.BytesIO()
    with tarfile.open(fileobj=to, mode="w") as archive:
        for name, each in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(each)
            archive.addfile(entry, io.BytesIO(each))
    return to.getvalue()


def _table(rows: Iterable[Iterable[object]], delimiter: str = ",") -> bytes:
    to = io.StringIO()
    csv.writer(to, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return to.getvalue().encode()


def _sentence(length: int) -> str:
    ranks = np.minimum(_rng.zipf(1.3, length), len(_WORDS)) - 1
    return " ".join(_WORDS[each] for each in ranks)


def _text(lines: int, length: int = 12, end: str = "") -> str:
    return "\n".join(_sentence(length) + end for _ in range(lines))


def _folders(top: str, sets: dict[str, int], kinds: Iterable[str], size: tuple[int, int], kind: str = ".png") -> Files:
    return {
        f"{top}/{part}{each}/{number}{kind}": picture(*size, seed=number, kind=kind)
        for part, count in sets.items()
        for each in kinds
        for number in range(count)
    }


def _labelled(top: str, table: str, heads: tuple[str, str], kinds: list[str], size: int, kind: str) -> Files:
    """A competition's pictures: a folder to train with, one to test with, and a table of labels."""
    count = 20 * len(kinds)
    files = {f"{top}/train/{each}{kind}": picture(size, size, each, kind) for each in range(1, count + 1)}
    files |= {f"{top}/test/{each}{kind}": picture(size, size, each, kind) for each in range(1, 6)}
    rows = [heads, *((each, kinds[each % len(kinds)]) for each in range(1, count + 1))]
    return files | {f"{top}/{table}": _table(rows)}


def _bananas() -> Files:
    files: Files = {}
    for part, count in (("bananas_train", 64), ("bananas_val", 16)):
        rows: list[Iterable[object]] = [("img_name", "label", "xmin", "ymin", "xmax", "ymax")]
        for each in range(count):
            left, top = _rng.integers(10, 150, 2)
            rows.append((f"{each}.png", 0, left, top, left + 70, top + 60))
            files[f"banana-detection/{part}/images/{each}.png"] = picture(256, 256, each, ".png")
        files[f"banana-detection/{part}/label.csv"] = _table(rows)
    return files


def _segments() -> Files:
    top = "VOCdevkit/VOC2012"
    colors = [(0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0)]
    files: Files = {}
    for part, count in (("train", 24), ("val", 8)):
        names = [f"{part}_{each}" for each in range(count)]
        files[f"{top}/ImageSets/Segmentation/{part}.txt"] = "\n".join(names).encode()
        for number, name in enumerate(names):
            files[f"{top}/JPEGImages/{name}.jpg"] = picture(340, 500, number)
            label = np.zeros((340, 500, 3), np.uint8)
            label[100:200, 100:400] = colors[number % 4]
            files[f"{top}/SegmentationClass/{name}.png"] = _encoded(label, ".png")
    return files


def _houses(count: int, first: int, priced: bool) -> bytes:
    names = ["Id", "MSSubClass", "MSZoning", "LotFrontage", *(f"Number{each}" for each in range(34))]
    names += [*(f"Kind{each}" for each in range(39)), "SaleType", "SaleCondition"]
    rows: list[Iterable[object]] = [names + ["SalePrice"] * priced]
    for each in range(count):
        frontage = "" if each % 6 == 0 else int(_rng.integers(40, 120))
        row: list[object] = [first + each, int(_rng.integers(20, 90)), ["RL", "RM", "FV"][each % 3], frontage]
        numbers = _rng.integers(0, 1000, 34)
        row += [
            *numbers.tolist(),
            *(f"k{_rng.integers(0, 4)}" for _ in range(39)),
            "WD",
            ["Normal", "Abnorml"][each % 2],
        ]
        rows.append(row + [50000 + 200 * int(numbers[0])] * priced)
    return _table(rows)


def _entailment() -> Files:
    def rows(count: int) -> bytes:
        lines: list[Iterable[object]] = [["gold_label", "sentence1_binary_parse", "sentence2_binary_parse"]]
        for each in range(count):
            label = ["entailment", "contradiction", "neutral", "-"][each % 4]
            lines.append([label, f"( {_sentence(8)} )", f"( ( {_sentence(5)} ) . )"])
        return _table(lines, "\t")

    return {"snli_1.0/snli_1.0_train.txt": rows(400), "snli_1.0/snli_1.0_test.txt": rows(200)}


def _reviews() -> Files:
    return {
        f"aclImdb/{part}/{kind}/{each}_1.txt": f"{word} {_sentence(60)} {word}".encode()
        for part in ("train", "test")
        for kind, word in (("pos", "good"), ("neg", "bad"))
        for each in range(100)
    }


def _vectors(name: str, width: int, head: bool) -> Files:
    others = (
        "cat chip baby beautiful woman daughter son beijing china tokyo japan worst big bigger biggest do did go went"
    )
    words = [*_WORDS, *f"{others} <unk> hate love man king queen".split(), *(f"word{each}" for each in range(3500))]
    lines = [f"{each} {' '.join(f'{v:.4f}' for v in _rng.standard_normal(width))}" for each in dict.fromkeys(words)]
    return {f"{name}/vec.txt": "\n".join([f"{len(lines)} {width}"] * head + lines).encode()}


def _ratings() -> Files:
    users = np.concatenate([np.arange(943), _rng.integers(0, 943, 12000)])
    items = np.concatenate([_rng.permutation(1682)[:943], _rng.integers(0, 1682, 12000)])
    users = np.concatenate([users, _rng.integers(0, 943, 1682), np.repeat(np.arange(943), 6)])
    items = np.concatenate([items, np.arange(1682), _rng.integers(0, 1682, 943 * 6)])
    pairs = np.unique(np.stack([users, items], 1), axis=0) + 1
    pairs = _rng.permutation(pairs)
    return {"ml-100k/u.data": _table(([u, i, (u + i) % 5 + 1, 880000000 + n] for n, (u, i) in enumerate(pairs)), "\t")}


def _clicks() -> Files:
    def rows(count: int) -> bytes:
        return _table(
            ([int(_rng.integers(0, 2)), *(int(each) for each in _rng.integers(0, 12, 34))] for _ in range(count)), "\t"
        )

    return {"ctr/train.csv": rows(6000), "ctr/test.csv": rows(2000)}


def _translations() -> bytes:
    pairs = [
        "Go.\tVa !",
        "Hi.\tSalut !",
        "I lost.\tJ'ai perdu.",
        "He's calm.\tIl est calme.",
        "I'm home.\tJe suis chez moi.",
    ]
    endings = ["."] * 4
    pairs += [f"{_sentence(3).capitalize()}{endings[n % 4]}\t{_sentence(4).capitalize()} ." for n in range(700)]
    return "\n".join(pairs[n % 5] if n % 3 == 0 else each for n, each in enumerate(pairs)).encode()


def _bert(width: int, inner: int, heads: int, layers: int) -> Files:
    """A network's parameters and words; it is made by the frontend that runs, whose parameters' names are its own."""
    import tempfile
    from pathlib import Path

    from d2l import mxnet as d2l
    from mxnet import np as mnp

    words = ["<unk>", "<pad>", "<mask>", "<cls>", "<sep>", *dict.fromkeys(_WORDS)]
    net = d2l.BERTModel(len(words), width, inner, heads, layers, 0.1, max_len=512)
    net.initialize()
    net(mnp.ones((2, 8)), mnp.ones((2, 8)), mnp.array([8, 8]), mnp.ones((2, 3)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "it.params"
        net.save_parameters(str(path))
        saved = path.read_bytes()
    return {"vocab.json": json.dumps(words).encode(), "pretrained.params": saved}


def _under(top: str, files: Files) -> Files:
    return {f"{top}/{name}": each for name, each in files.items()}


def _ptb() -> Files:
    return {f"ptb/ptb.{part}.txt": _text(1200).encode() for part in ("train", "valid", "test")}


def _wikipedia() -> Files:
    lines = "\n".join(f" {_sentence(9)} . {_sentence(8)} . {_sentence(7)} . " for _ in range(400))
    return {f"wikitext-2/wiki.{part}.tokens": lines.encode() for part in ("train", "valid", "test")}


_CIFAR = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
_MADE: dict[str, Callable[[], Files | bytes]] = {
    "hotdog.zip": lambda: _folders("hotdog", {"train/": 48, "test/": 8}, ("hotdog", "not-hotdog"), (240, 260)),
    "kaggle_cifar10_tiny.zip": lambda: _labelled(
        "kaggle_cifar10_tiny", "trainLabels.csv", ("id", "label"), _CIFAR, 32, ".png"
    ),
    "kaggle_dog_tiny.zip": lambda: _labelled(
        "kaggle_dog_tiny", "labels.csv", ("id", "breed"), [f"breed{each}" for each in range(12)], 240, ".jpg"
    ),
    "banana-detection.zip": _bananas,
    "VOCtrainval_11-May-2012.tar": _segments,
    "pokemon.zip": lambda: _folders("pokemon", {"": 32}, ("one", "two", "three"), (64, 64)),
    "airfoil_self_noise.dat": lambda: _table(_rng.standard_normal((1503, 6)).round(4).tolist(), "\t"),
    "kaggle_house_pred_train.csv": lambda: _houses(1460, 1, True),
    "kaggle_house_pred_test.csv": lambda: _houses(1459, 1461, False),
    "snli_1.0.zip": _entailment,
    "bert.base.zip": lambda: _under("bert.base", _bert(768, 3072, 12, 12)),
    "bert.small.zip": lambda: _under("bert.small", _bert(256, 512, 4, 2)),
    "aclImdb_v1.tar.gz": _reviews,
    "wikitext-2-v1.zip": _wikipedia,
    "glove.6B.50d.zip": lambda: _vectors("glove.6B.50d", 50, False),
    "glove.6B.100d.zip": lambda: _vectors("glove.6B.100d", 100, False),
    "glove.42B.300d.zip": lambda: _vectors("glove.42B.300d", 300, False),
    "wiki.en.zip": lambda: _vectors("wiki.en", 300, True),
    "ptb.zip": _ptb,
    "ctr.zip": _clicks,
    "ml-100k.zip": _ratings,
    "fra-eng.zip": lambda: {"fra-eng/fra.txt": _translations()},
    "timemachine.txt": lambda: _text(3000, 10).encode(),
}
