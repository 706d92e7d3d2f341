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
from flowmx.artifacts import archives
from flowmx.artifacts.archives import unpack
from flowmx.comm.metrics import Metrics
from flowmx.serve import Handler, Predictor, Repository
from flowmx.serve.folders import create_predictor
from flowmx.serve.mms_context import Response
from flowmx.serve.replies import Refusal
from tests.serve.test_http import JSON, carried  # noqa: F401 (a fixture)
from tests.waiting import until

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


async def answer(predictor, body=1):
    response = await predictor({"body": body})
    return response.value if isinstance(response, Response) else response


def placed(folder, files=FILES):
    """Return an archive in a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return archive(folder, files)


@pytest.mark.parametrize("kind", ["handler", "text", "folder", "predictor"])
async def test_programs_use_archives(tmp_path, scratch, kind):
    path = archive(tmp_path, FILES)
    handlers = {
        "handler": lambda: Handler(path), "text": lambda: Handler(str(path)),
        "folder": lambda: Handler("archived_service.py:Service", path), "predictor": lambda: path,
    }  # fmt: skip
    async with Predictor(handlers[kind](), metrics=Metrics()) as predictor:
        assert await answer(predictor) == {"label": "dog", "scale": 3, "name": "animals"}
        archive(tmp_path, {**FILES, "weights/scale.txt": "4"})
        await predictor.swap(handlers[kind]())
        assert (await answer(predictor))["scale"] == 4
    del predictor, handlers
    gc.collect()
    assert not list(scratch.iterdir())


def test_the_archive_of_a_program_names_a_handler_or_none_is_left(tmp_path, scratch):
    path = archive(tmp_path, {"model.txt": "x"})
    for attempt in (lambda: Handler(path), lambda: Predictor(path)):
        with pytest.raises(ValueError, match=r"names no handler in MAR-INF/MANIFEST.json: pass handler='MODULE:NAME'"):
            attempt()
    with pytest.raises(FileNotFoundError, match="absent"):
        Handler(tmp_path / "absent.mar")
    with pytest.raises(ValueError, match="is a model archive, which has its folder: leave out folder="):
        Handler(archive(tmp_path, FILES), tmp_path)
    gc.collect()
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("place", [".", "model", "model/1"])
async def test_a_repository_serves_archives_and_reads_changed_ones_again(tmp_path, scratch, place):
    folder = tmp_path / "models"
    path = placed(folder / place)
    repository = Repository(folder)
    assert repository.names() == ["model"]
    await repository.load("model")
    first = repository.models.find("model")
    assert await answer(first) == {"label": "dog", "scale": 3, "name": "animals"}
    await repository.load("model")
    assert repository.models.find("model") is first
    archive(path.parent, {**FILES, "weights/scale.txt": "12"})
    await repository.load("model")
    assert (await answer(repository.models.find("model")))["scale"] == 12
    await repository.unload("model")
    del first
    await until(lambda: gc.collect() >= 0 and not list(scratch.iterdir()))


async def test_options_of_archives_in_a_repository(tmp_path):
    folder = tmp_path / "models"
    placed(folder / "model" / "2")
    (folder / "model" / "model.toml").write_text("max_batch = 5\n")
    repository = Repository(folder)
    await repository.load("model")
    assert repository.models.find("model", "2").describe()["batch_sizes"] == [1, 2, 3, 4, 5]
    (folder / "model" / "model.toml").write_text("shape = [2]\n")
    with pytest.raises(Refusal, match="which reads bodies and loads its model itself: leave out shape"):
        await repository.load("model")
    await repository.models.drain()


async def test_a_repository_with_two_models_in_one_place_names_them(tmp_path):
    path = placed(tmp_path / "models" / "model")
    (path.parent / "net-symbol.json").write_text("{}")
    repository = Repository(tmp_path / "models")
    with pytest.raises(Refusal, match=r"must hold one model, found model.mar, net-symbol.json"):
        await repository.load("model")
    archive(tmp_path / "models", FILES)
    with pytest.raises(Refusal, match=r"has both model.mar and a folder model: rename or remove one"):
        await repository.load("model")


async def test_an_archive_is_served_with_its_handler(carried, tmp_path, scratch):  # noqa: F811
    predictor = create_predictor(archive(tmp_path, FILES), metrics=Metrics())
    [folder] = scratch.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    async with carried(predictor) as ask:
        status, _, answer = await ask("POST", "/predictions/animals", b"1", Content_Type=JSON)
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
    monkeypatch.setattr(archives, "_ANY_RATIO", 1 << 16)
    path = archive(tmp_path, {**FILES, entry: content})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=message):
        create_predictor(path)
    assert sorted(tmp_path.rglob("*")) == before


def test_archives_of_too_many_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "_MAX_FILES", 4)
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
    with pytest.raises(ValueError, match="is damaged, or not an archive"):
        unpack(path)
    gc.collect()
    assert not list(scratch.iterdir())


def test_an_archive_without_a_handler_is_refused(tmp_path, capsys):
    path = archive(tmp_path, {"model.txt": "x"})
    assert cli.main(["serve", str(path)]) == 1
    assert "names no handler in MAR-INF/MANIFEST.json" in capsys.readouterr().err
    assert cli.main(["serve", str(Path("absent.mar"))]) == 1
    assert "absent.mar" in capsys.readouterr().err
