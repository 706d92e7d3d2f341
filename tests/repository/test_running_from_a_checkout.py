"""In the root of a checkout, flowmx runs from the checkout's files alone, whether or not another one is installed."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("new_python")

ROOT = Path(__file__).parents[2]
FOLDERS = "flowmx", "comm", "devices", "ops"
LOADED = """
import pathlib, sys
import flowmx
from flowmx.comm.client import Peer

assert flowmx.nd.ones(3).asnumpy().sum() == 3
modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "flowmx"}
files = {name: getattr(module, "__file__", None) for name, module in modules.items()}
print([name for name, file in files.items() if file and not pathlib.Path(file).is_relative_to(pathlib.Path.cwd())])
print(sorted({"comm", "devices", "ops", "tests"} & sys.modules.keys()))
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkout")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name)  # with what was compiled: times of files are kept
    return folder


def printed(folder, *arguments, installed=False):
    """The output of Python in a folder: with flowmx installed from elsewhere, or only with what flowmx needs."""
    packages = os.pathsep.join(dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib")))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    # -S leaves out the .pth files, and so the finder of an editable installation.
    options = [] if installed else ["-S"]
    done = subprocess.run(
        [sys.executable, *options, *arguments], cwd=folder, capture_output=True, text=True,
        env=environment if installed else {**environment, "PYTHONPATH": packages},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("installed", [False, True])
def test_it_is_imported_from_its_own_files_alone(checkout, installed):
    assert printed(checkout, "-c", LOADED, installed=installed).splitlines() == ["[]", "[]"]


def test_its_commands_run(checkout):
    assert "flowmx" in printed(checkout, "-m", "flowmx", "info")


def test_a_package_named_devices_next_to_an_installed_flowmx_is_unrelated(tmp_path):
    installed = tmp_path / "flowmx"
    installed.mkdir()
    for source in [*(ROOT / "flowmx").iterdir(), *(ROOT / name for name in FOLDERS[1:])]:
        (installed / source.name).symlink_to(source)
    (tmp_path / "devices").mkdir()
    assert printed(tmp_path, "-c", "import flowmx; print(len(flowmx.__path__))") == "1\n"
