"""Downloads of datasets in archives."""

from __future__ import annotations

import bz2
import os
import shutil
import zipfile
from pathlib import Path

from flowmx.test_utils.datasets import download

__all__ = ["get_bz2_data", "get_cifar10", "get_zip_data"]

Folder = str | os.PathLike[str]


def get_zip_data(data_dir: Folder, url: str, data_origin_name: str) -> None:
    """Download a zip archive and extract it into its folder, unless the archive exists.

    Args:
        data_dir: the folder.
        url: URL of the archive.
        data_origin_name: its name in the folder.
    """
    archive = Path(data_dir, data_origin_name)
    if archive.exists():
        return
    download(url, fname=data_origin_name, dirname=str(data_dir))
    with zipfile.ZipFile(archive) as file:
        file.extractall(data_dir)


def get_bz2_data(data_dir: Folder, data_name: str, url: str, data_origin_name: str) -> None:
    """Download and decompress a bzip2 file, unless the result exists; remove the compressed file.

    Args:
        data_dir: the folder.
        data_name: name of the decompressed file.
        url: URL of the compressed file.
        data_origin_name: its name in the folder.
    """
    compressed, plain = Path(data_dir, data_origin_name), Path(data_dir, data_name)
    if plain.exists():
        return
    download(url, fname=data_origin_name, dirname=str(data_dir))
    with bz2.open(compressed) as source, plain.open("wb") as target:
        shutil.copyfileobj(source, target)
    compressed.unlink()


def get_cifar10() -> None:
    """Download CIFAR-10 as ``train.rec`` and ``test.rec`` with their lists to ``data/cifar``, unless they exist."""
    names = [f"{part}.{kind}" for part in ("train", "test") for kind in ("rec", "lst")]
    if not all(Path("data", "cifar", name).exists() for name in names):
        get_zip_data("data", "http://data.mxnet.io/mxnet/data/cifar10.zip", "cifar10.zip")
