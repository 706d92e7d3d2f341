"""Data sets from archives: existing files are not fetched; fetched archives are unpacked."""

import bz2
import shutil
import zipfile

import pytest

from flowmx.test_utils import archives


@pytest.fixture
def requested_urls(tmp_path, monkeypatch):
    """Replace downloads with copies of local archives; return the URLs that were requested."""
    monkeypatch.chdir(tmp_path)
    urls = []

    def download(url, fname, dirname):
        urls.append(url)
        (tmp_path / dirname).mkdir(exist_ok=True)
        shutil.copy(tmp_path / url.split("/")[-1], tmp_path / dirname / fname)

    monkeypatch.setattr(archives, "download", download)
    return urls


def test_cifar10_is_unpacked_once(tmp_path, requested_urls):
    with zipfile.ZipFile(tmp_path / "cifar10.zip", "w") as file:
        for name in ("train.rec", "train.lst", "test.rec", "test.lst"):
            file.writestr(f"cifar/{name}", name)
    archives.get_cifar10()
    archives.get_cifar10()
    assert (tmp_path / "data" / "cifar" / "test.rec").read_text() == "test.rec"
    assert len(requested_urls) == 1


def test_a_compressed_file_leaves_only_its_content(tmp_path, requested_urls):
    (tmp_path / "numbers.bz2").write_bytes(bz2.compress(b"1 2 3"))
    for _ in range(2):
        archives.get_bz2_data("data", "numbers", "http://host/numbers.bz2", "numbers.bz2")
    assert [each.name for each in (tmp_path / "data").iterdir()] == ["numbers"]
    assert (tmp_path / "data" / "numbers").read_bytes() == b"1 2 3" and len(requested_urls) == 1
