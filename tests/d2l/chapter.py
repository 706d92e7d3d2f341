"""Run the MXNet cells of one chapter of "Dive into Deep Learning", on flowmx or the real MXNet.

    python chapter.py BOOK CHAPTER [flowmx|mxnet]

BOOK is a checkout of the book with its ``d2l`` package. Cells run unchanged, except that magics are skipped and
training is shortened (``book.py``). Downloads come from ``data.py``.
"""

from __future__ import annotations

import os
import random
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from book import cells, shorter

FEW = "modern|computational|computer-vision"
"""Chapters with big networks, for which there are fewer pictures."""
GPUS = "auto-parallelism|multiple-gpus|use-gpu"


def stand_in(*names: str) -> None:
    """Modules that draw and show, where they are not installed."""
    for name in names:
        try:
            __import__(name)
        except ImportError:
            sys.modules[name] = mocked = mock.MagicMock(name=name)
            mocked.subplots.return_value = mock.MagicMock(), mock.MagicMock()
            package, _, module = name.rpartition(".")
            if package:
                setattr(sys.modules[package], module, mocked)


def put_back() -> None:
    """Put back what newer pandas and Matplotlib took away from what the book uses."""
    import pandas
    from matplotlib import axes, pyplot

    if isinstance(pandas, mock.MagicMock) or isinstance(axes, mock.MagicMock):
        return
    mean, stem, dummies, csv = pandas.DataFrame.mean, axes.Axes.stem, pandas.get_dummies, pandas.read_csv
    pandas.read_csv = lambda file, sep=",", **options: csv(file, sep=sep, **options)
    pandas.set_option("future.infer_string", False)
    pandas.get_dummies = lambda *args, dtype="uint8", **options: dummies(*args, dtype=dtype, **options)
    pandas.DataFrame.mean = lambda self, **options: mean(self, **{"numeric_only": True, **options})
    axes.Axes.stem = lambda self, *args, use_line_collection=True, **options: stem(self, *args, **options)
    pyplot.stem = lambda *args, **options: pyplot.gca().stem(*args, **options)


def prepare(book: Path, chapter: str, system: str) -> None:
    """Make MXNet importable, and everything that is downloaded made here."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    stand_in("matplotlib", "matplotlib.pyplot", "matplotlib_inline", "pandas", "IPython", "IPython.display")
    if system == "flowmx":
        import flowmx

        flowmx.install_as_mxnet()
    put_back()
    sys.path.insert(0, str(book))
    import data
    import mxnet as mx
    import requests

    requests.get = lambda address, **_: types.SimpleNamespace(content=data.content(address))
    count = 40 if "modern" in chapter else 96 if re.search(FEW, chapter) else 2048
    of_test = 10_000 if "geometry" in chapter else count // 2  # that chapter counts on the real test set's length

    def read(shape: tuple[int, ...]) -> Callable[[Any], Any]:
        return lambda self: data.images(shape, self._train, count if self._train else of_test)

    def get_data(self: Any) -> None:  # the real MXNet's
        pictures, labels = self._read()
        of_numpy = mx.util.is_np_array()
        self._data = mx.np.array(pictures, dtype="uint8") if of_numpy else mx.nd.array(pictures, dtype="uint8")
        self._label = mx.np.array(labels, dtype="int32") if of_numpy else labels

    sets = mx.gluon.data.vision
    for kind, shape in ((sets.MNIST, (28, 28, 1)), (sets.FashionMNIST, (28, 28, 1)), (sets.CIFAR10, (32, 32, 3))):
        kind._read = read(shape)
        if system == "mxnet":
            kind._get_data = get_data
    zoo = mx.gluon.model_zoo.vision
    for name in ("resnet18_v2", "resnet34_v2", "vgg19"):
        setattr(zoo, name, untrained(getattr(zoo, name)))
    mx.random.seed(0)
    np.random.seed(0)
    random.seed(0)


def untrained(make: Callable[..., Any]) -> Callable[..., Any]:
    """A network of the zoo with random weights in place of those that are downloaded."""

    def construct(pretrained: bool = False, **options: Any) -> Any:
        import mxnet as mx

        net = make(**options)
        if pretrained:
            net.initialize(mx.init.Xavier())
            net(mx.np.zeros((1, 3, 224, 224)) if mx.util.is_np_array() else mx.nd.zeros((1, 3, 224, 224)))
        return net

    return construct


def main() -> None:
    """Run a chapter; those about GPUs on two simulated ones, which compute on this machine's processors."""
    book, chapter = Path(sys.argv[1]).resolve(), sys.argv[2]
    system = sys.argv[3] if len(sys.argv) > 3 else "flowmx"
    if system == "flowmx" and re.search(GPUS, chapter):
        from flowmx.devices.sim import simulated

        with simulated(count=2, device_type="gpu"):
            run(book, chapter, system)
    else:
        run(book, chapter, system)


def run(book: Path, chapter: str, system: str) -> None:
    """Run the cells, one after the other."""
    prepare(book, chapter, system)
    import mxnet as mx

    # Classes of the cells are found again by workers of theirs, as in a notebook.
    notebook = types.ModuleType("__main__")
    ours, sys.modules["__main__"] = sys.modules["__main__"], notebook
    for number, cell in enumerate(cells((book / chapter).read_text(encoding="utf-8"))):
        code = shorter(cell, chapter)
        try:
            exec(compile(code, f"{chapter}:{number}", "exec"), vars(notebook))  # what the book's readers run
        except Exception:
            print(f"--- cell {number}\n{code}", file=sys.stderr)
            raise
    mx.nd.waitall()
    sys.modules["__main__"] = ours


if __name__ == "__main__":
    main()
