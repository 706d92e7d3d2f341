"""Milliseconds that a DataLoader takes for 1000 samples (run by turns.py)."""

import functools
import importlib
import json
import sys
import time
from pathlib import Path

import numpy as np

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def arrays():
    """Return rows and labels like those of digits, and small images with labels."""
    chance = np.random.default_rng(0)
    return {
        "rows": (chance.random((8192, 784), np.float32), chance.integers(0, 10, 8192, np.int32)),
        "augmented": (chance.integers(0, 256, (2048, 32, 32, 3), np.uint8), chance.integers(0, 10, 2048, np.int32)),
    }


def mxnet_datasets(mx, folder):
    """Return the data sets of flowmx or MXNet by name, with their batch sizes."""
    data = mx.gluon.data
    change = data.vision.transforms
    small = change.Compose([change.RandomFlipLeftRight(), change.ToTensor(), change.Normalize(MEAN, STD)])
    usual = [change.RandomFlipLeftRight(), change.ToTensor(), change.Normalize(MEAN, STD)]
    jpeg = change.Compose([change.RandomResizedCrop(224), *usual])
    colored = change.Compose([change.RandomResizedCrop(224), change.RandomColorJitter(0.2, 0.2, 0.2), *usual])
    sets = {name: data.ArrayDataset(mx.nd.array(x, dtype=x.dtype), y) for name, (x, y) in arrays().items()}
    records = data.vision.ImageRecordDataset(str(Path(folder, "images.rec")))
    return {
        "rows": (sets["rows"], 64),
        "augmented": (sets["augmented"].transform_first(small), 64),
        "JPEG": (records.transform_first(jpeg), 32),
        "JPEG, colored": (records.transform_first(colored), 32),
    }


class Augmented:
    """PyTorch's data set of small images."""

    def __init__(self, torch, images, labels):
        self.images, self.labels = torch.from_numpy(images), torch.from_numpy(labels)
        self.mean, self.std = (torch.tensor(values).reshape(3, 1, 1) for values in (MEAN, STD))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        import torch

        image = self.images[index]
        image = torch.flip(image, (1,)) if torch.rand(()) < 0.5 else image
        return (image.permute(2, 0, 1).to(torch.float32) / 255 - self.mean) / self.std, self.labels[index]


def torch_datasets(torch, folder):
    """Return PyTorch's data sets; it has no JPEG decoder."""
    del folder
    sets = arrays()
    rows = torch.utils.data.TensorDataset(*map(torch.from_numpy, sets["rows"]))
    return {"rows": (rows, 64), "augmented": (Augmented(torch, *sets["augmented"]), 64)}


def milliseconds(loader, count, ready):
    """Return the milliseconds for 1000 samples, in the fastest of three epochs after a warm-up."""
    best = float("inf")
    for epoch in range(4):
        start = time.perf_counter()
        for batch in loader:
            ready(batch[0])
        best = min(best, time.perf_counter() - start) if epoch else best
    return 1e6 * best / count


def main():
    """Measure one system."""
    name, folder = sys.argv[1:]
    module = importlib.import_module(name)
    if name == "torch":
        kind, datasets, ready = (
            importlib.import_module("torch.utils.data").DataLoader,
            torch_datasets,
            lambda each: each,
        )
        kind = functools.partial(kind, persistent_workers=True)
    else:
        kind, datasets, ready = module.gluon.data.DataLoader, mxnet_datasets, lambda each: each.wait_to_read()
    figures = {}
    for workers in (0, 2):
        for case, (dataset, batch_size) in datasets(module, folder).items():
            make = kind if workers or name != "torch" else functools.partial(kind, persistent_workers=False)
            loader = make(dataset, batch_size, shuffle=True, num_workers=workers)
            figures[f"{case}, {workers} workers"] = milliseconds(loader, len(dataset), ready)
            del loader
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
