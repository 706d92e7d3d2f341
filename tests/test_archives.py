"""Data sets from archives: what is there is not fetched; what is fetched is unpacked."""

import bz2
import shutil
import zipfile

import pytest

from flowmx.test_utils import archives


@pytest.fixture
def fetched(tmp_path, monkeypatch):
    """The archives that a fetch gives instead of the network's; returns the addresses asked for."""
    monkeypatch.chdir(tmp_path)
    asked = []

    def download(url, fname, dirname):
        asked.append(url)
        (tmp_path / dirname).mkdir(exist_ok=True)
        shutil.copy(tmp_path / url.split("/")[-1], tmp_path / dirname / fname)

    monkeypatch.setattr(archives, "download", download)
    return asked


def test_cifar10_is_unpacked_once(tmp_path, fetched):
    with zipfile.ZipFile(tmp_path / "cifar10.zip", "w") as file:
        for name in ("train.rec", "train.lst", "test.rec", "test.lst"):
            file.writestr(f"cifar/{name}", name)
    archives.get_cifar10()
    archives.get_cifar10()
    assert (tmp_path / "data" / "cifar" / "test.rec").read_text() == "test.rec"
    assert len(fetched) == 1


def test_a_compressed_file_leaves_only_what_was_in_it(tmp_path, fetched):
    (tmp_path / "numbers.bz2").write_bytes(bz2.compress(b"1 2 3"))
    for _ in range(2):
        archives.get_bz2_data("data", "numbers", "http://host/numbers.bz2", "numbers.bz2")
    assert [each.name for each in (tmp_path / "data").iterdir()] == ["numbers"]
    assert (tmp_path / "data" / "numbers").read_bytes() == b"1 2 3" and len(fetched) == 1
