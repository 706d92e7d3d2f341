"""oneDNN's library: the places where it is searched, and what is said if none of them has a usable one."""

import os
import site
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from flowmx.observability.doctor import report
from flowmx.observability.flight import snapshot
from flowmx.ops.kernels.onednn import library, search

installed = library.library()
needs_onednn = pytest.mark.skipif(installed is None, reason="the oneDNN library is not installed")


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """Hide the places of this machine that have the library; return a folder for the test's place."""
    for name in ("prefix", "base_prefix", "exec_prefix"):
        monkeypatch.setattr(sys, name, str(tmp_path / name))
    monkeypatch.setattr(site, "ENABLE_USER_SITE", False)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "nothing")])
    monkeypatch.setattr(metadata, "files", missing)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    return tmp_path


def missing(name):
    raise metadata.PackageNotFoundError(name)


def place(folder, name=search.FILE):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).touch()
    return folder / name


def existing(setting="", folder=Path("/")):
    """Return the first candidate in a folder."""
    return next((path for path in search.candidates(setting) if path.is_relative_to(folder) and path.exists()), None)


@pytest.mark.parametrize("prefix", ["prefix", "base_prefix", "exec_prefix"])
def test_environments_and_the_interpreters_they_are_made_from_are_searched(nowhere, prefix):
    path = place(nowhere / prefix / "lib")
    assert existing(folder=nowhere) == path


def test_the_users_packages_are_searched_if_python_uses_them(nowhere, monkeypatch):
    path = place(nowhere / "user" / "lib")
    monkeypatch.setattr(site, "getuserbase", lambda: str(nowhere / "user"))
    assert existing(folder=nowhere) is None
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    assert existing(folder=nowhere) == path


@pytest.mark.parametrize(
    ("entry", "folder"), [("target", "target/lib"), ("prefixed/lib/python3.11/site-packages", "prefixed/lib")]
)
def test_folders_of_pips_target_and_prefix_are_searched_if_the_wheel_is_there(nowhere, monkeypatch, entry, folder):
    path = place(nowhere / folder)
    monkeypatch.setattr(sys, "path", [str(nowhere / entry)])
    assert existing(folder=nowhere) is None  # a library in a folder of someone's program
    (nowhere / entry / "onednn_cpu_gomp-2023.2.0.dist-info").mkdir(parents=True)
    assert existing(folder=nowhere) == path


def test_the_wheels_own_list_of_files_is_used(nowhere, monkeypatch):
    path = place(nowhere / "elsewhere")

    class File:
        name = search.FILE

        def locate(self):
            return nowhere / "site-packages" / ".." / "elsewhere" / search.FILE

    monkeypatch.setattr(metadata, "files", lambda name: [File()] if name == search.DISTRIBUTION else [])
    assert existing(folder=nowhere) == path


def test_the_linkers_folders_are_searched(nowhere, monkeypatch):
    path = place(nowhere / "linked")
    monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join([str(nowhere / "other"), "", str(nowhere / "linked")]))
    assert existing(folder=nowhere) == path
    assert Path("/usr/lib", search.FILE) in list(search.candidates())


def test_a_setting_names_the_file_or_its_folder_and_nothing_else_is_searched(nowhere):
    place(nowhere / "prefix" / "lib")
    path, other = place(nowhere / "chosen"), place(nowhere / "chosen", "libdnnl.so.3.2")
    assert list(search.candidates(str(path.parent))) == [path]
    assert list(search.candidates(str(other))) == [other]
    assert list(search.candidates("0")) == list(search.candidates("none")) == []


# -- in a new process --------------------------------------------------------------------------------------

PROGRAM = """
import flowmx as mx
from flowmx.observability.flight import snapshot
net = mx.gluon.nn.Conv2D(2, 3)
net.initialize()
net(mx.nd.ones((1, 3, 8, 8))).wait_to_read()
print(snapshot.take()["kernels"])
"""


def run(**environment):
    """Return the status of a new process's kernels, and its log."""
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    process = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return process.stdout.strip(), process.stderr


@needs_onednn
def test_the_setting_chooses_the_library(tmp_path):
    link = tmp_path / search.FILE
    link.symlink_to(installed.path)
    status, log = run(FLOWMX_ONEDNN_LIBRARY=str(tmp_path))
    assert status == f"oneDNN {installed.version()} from {link}"
    assert "oneDNN" not in log
    status, log = run(FLOWMX_ONEDNN_LIBRARY="0")
    assert status == "oneDNN is switched off by FLOWMX_ONEDNN_LIBRARY"
    assert "oneDNN" not in log


@pytest.mark.parametrize("kind", ["missing", "text", "other library"])
def test_an_unusable_library_is_named_and_numpy_computes(tmp_path, kind):
    path = tmp_path / search.FILE
    if kind == "text":
        path.write_text("no library")
    elif kind == "other library":
        files = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line]
        path.symlink_to(next(file for file in files if file.startswith("/") and "dnnl" not in file))
    status, log = run(FLOWMX_ONEDNN_LIBRARY=str(path))
    assert status in log
    assert status.startswith("oneDNN cannot be loaded: ") and str(path) in status
    assert "run in NumPy, slower" in status


def test_the_places_of_the_search_are_named(nowhere, monkeypatch):
    monkeypatch.setattr(library, "_loaded", [None])
    monkeypatch.setattr(library, "_missing", list(search.candidates()))
    monkeypatch.setattr(library, "_failures", [])
    status = library.status()
    assert f"there is no {search.FILE} in {nowhere / 'prefix' / 'lib'}, " in status
    assert "/usr/lib, " in status
    assert "pip install onednn-cpu-gomp, or set FLOWMX_ONEDNN_LIBRARY to the file" in status
    text = report.render([snapshot.take()], [])
    assert f"kernels: {status}" in text
