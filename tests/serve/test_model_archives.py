"""Model archives of Multi Model Server, .mar files: served as they are, and refused if they are hostile."""

import gc
import json
import stat
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from flowmx import cli
from flowmx.comm.metrics import Metrics
from flowmx.serve import model_archives
from flowmx.serve.folders import create_predictor
from flowmx.serve.model_archives import unpack
from tests.serve.test_http import JSON, carried  # noqa: F401 (a fixture)

SERVICE = """
import os
from archived_labels import LABELS

class Service:
    def initialize(self, context):
        with open(os.path.join(context.system_properties["model_dir"], "weights", "scale.txt")) as file:
            self.scale = int(file.read())
        self.name = context.manifest["model"]["modelName"]

    def handle(self, data, context):
        return [{"label": LABELS[request["body"]], "scale": self.scale, "name": self.name} for request in data]
"""
MANIFEST = {"runtime": "python", "model": {"modelName": "animals", "handler": "archived_service.py:Service"}}
FILES = {
    "MAR-INF/": "", "MAR-INF/MANIFEST.json": json.dumps(MANIFEST), "archived_service.py": SERVICE,
    "archived_labels.py": "LABELS = ['cat', 'dog']", "weights/scale.txt": "3",
}  # fmt: skip


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """Return the folder in which archives are unpacked."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    for name in ("archived_service", "archived_labels"):
        sys.modules.pop(name, None)


def archive(folder, files):
    path = folder / "model.mar"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            file.writestr(name, content)
    return path


async def test_an_archive_is_served_with_its_handler(carried, tmp_path, scratch):  # noqa: F811
    predictor = create_predictor(archive(tmp_path, FILES), metrics=Metrics())
    [folder] = scratch.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    async with carried(predictor) as ask:
        status, _, answer = await ask("POST", "/predictions/model", b"1", Content_Type=JSON)
        assert (status, json.loads(answer)) == (200, {"label": "dog", "scale": 3, "name": "animals"})
    del predictor, ask
    gc.collect()
    assert not list(scratch.iterdir())


LINK = zipfile.ZipInfo("weights/link")
LINK.external_attr = (stat.S_IFLNK | 0o777) << 16


@pytest.mark.parametrize(
    ("entry", "content", "message"),
    [
        ("../evil.py", "x", "'../evil.py' is outside the archive's folder"),
        ("a/../../evil.py", "x", "is outside"),
        ("/tmp/evil.py", "x", "is outside"),
        ("C:evil.py", "x", "is outside"),
        ("a\\..\\evil.py", "x", "is outside"),
        (LINK, "/etc/passwd", "'weights/link' is a link or a device"),
        ("Weights/scale.txt", "4", "several entries have the same path"),
        ("archived_service.py/x", "4", "several entries have the same path"),
        ("zeros", bytes(1 << 20), "unpacks to 104[0-9]*, expected at most 200 times as many"),
    ],
)
def test_hostile_archives_are_refused_and_nothing_is_written(tmp_path, monkeypatch, entry, content, message):
    monkeypatch.setattr(model_archives, "_ANY_RATIO", 1 << 16)
    path = archive(tmp_path, {**FILES, entry: content})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=message):
        create_predictor(path)
    assert sorted(tmp_path.rglob("*")) == before


def test_archives_of_too_many_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(model_archives, "_MAX_FILES", 4)
    with pytest.raises(ValueError, match="has 5 entries, expected at most 4"):
        unpack(archive(tmp_path, FILES))


@pytest.mark.parametrize("damage", ["text", "cut", "changed"])
def test_damaged_archives_are_refused_and_leave_no_folder(tmp_path, scratch, damage):
    path = archive(tmp_path, FILES)
    with zipfile.ZipFile(path) as file:
        at = file.getinfo("archived_service.py").header_offset + 80
    data = bytearray(path.read_bytes())
    data[at] ^= 255
    path.write_bytes({"text": b"a model", "cut": data[:-30], "changed": data}[damage])
    with pytest.raises(ValueError, match="is damaged, or not a model archive"):
        unpack(path)
    gc.collect()
    assert not list(scratch.iterdir())


def test_an_archive_without_a_handler_is_refused(tmp_path, capsys):
    path = archive(tmp_path, {"model.txt": "x"})
    assert cli.main(["serve", str(path)]) == 1
    assert "names no handler in MAR-INF/MANIFEST.json" in capsys.readouterr().err
    assert cli.main(["serve", str(Path("absent.mar"))]) == 1
    assert "absent.mar" in capsys.readouterr().err
