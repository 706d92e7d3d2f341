"""The package list of flowmx and its stubs, both made at build time; everything else stands in pyproject.toml."""

import base64
import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from setuptools import Command, find_packages, setup
from setuptools.command import build_py, editable_wheel, sdist

ROOT = Path(__file__).resolve().parent

# Package -> folder. Three packages stand at the top of the repository, but are only ever installed under
# flowmx: a top-level `comm` would shadow Jupyter's.
# flowmx_pytest is no part of flowmx, since pytest imports it in every run.
ROOTS = {
    "flowmx": "flowmx", "flowmx.devices": "devices", "flowmx.ops": "ops", "flowmx.comm": "comm",
    "flowmx_pytest": "packaging/pytest/flowmx_pytest",
}  # fmt: skip

packages = [
    package
    for root, folder in ROOTS.items()
    for package in (root, *(f"{root}.{name}" for name in find_packages(folder)))
]


def write_stubs(command: Command) -> None:
    """Write the stubs into the source, as package data; without flowmx's dependencies those at hand have to do."""
    if subprocess.run([sys.executable, "-m", "flowmx.tools.stubs"], cwd=ROOT).returncode:
        command.warn("flowmx cannot be imported here, so its stubs were not written")


class BuildPy(build_py.build_py):
    """Copies the packages, or only finds them for an editable installation, with new stubs."""

    command_name = "build_py"

    def run(self) -> None:
        write_stubs(self)
        super().run()


class SDist(sdist.sdist):
    """Makes the source distribution with new stubs, for builds which cannot write them."""

    command_name = "sdist"

    def run(self) -> None:
        write_stubs(self)
        super().run()


def link_tree() -> Path:
    """Make build/editable, a folder in which flowmx stands as if it were installed, by links to the sources."""
    tree = ROOT / "build" / "editable"
    shutil.rmtree(tree, ignore_errors=True)
    (tree / "flowmx").mkdir(parents=True)
    entries = [path for path in (ROOT / "flowmx").iterdir() if path.name != "__pycache__"]
    for path in [*entries, *(ROOT / name for name in ("comm", "devices", "ops"))]:
        (tree / "flowmx" / path.name).symlink_to(path, target_is_directory=path.is_dir())
    return tree


# Type checkers read the paths in .pth files, but do not run the finder that setuptools installs. Python runs the
# finder, and finds nothing at these paths, so that tracebacks and debuggers show the sources themselves.
TYPES = """\
{tree}
import sys; sys.path_importer_cache[{tree!r}] = type("Hidden", (), {{"find_spec": lambda *names: None}})()
"""


class EditableWheel(editable_wheel.editable_wheel):
    """Makes the wheel of an editable installation, with a path at which type checkers find flowmx."""

    command_name = "editable_wheel"

    def run(self) -> None:
        super().run()
        try:
            text = TYPES.format(tree=str(link_tree()))
        except OSError as error:  # Windows allows links to developers only
            self.warn(f"type checkers will not find flowmx, because links cannot be made: {error}")
            return
        for wheel in Path(self.dist_dir).glob("flowmx-*.editable-*.whl"):
            add_file(wheel, "__editable__.flowmx_types.pth", text.encode())


def add_file(wheel: Path, name: str, content: bytes) -> None:
    """Add a file to a wheel, and to its list of files."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    with zipfile.ZipFile(wheel) as source:
        files = {each.filename: source.read(each) for each in source.infolist()}
    record = next(each for each in files if each.endswith(".dist-info/RECORD"))
    files = {name: content, **files, record: files[record] + f"{name},sha256={digest},{len(content)}\n".encode()}
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as target:
        for each, data in files.items():
            target.writestr(each, data)


setup(
    cmdclass={"build_py": BuildPy, "editable_wheel": EditableWheel, "sdist": SDist},
    packages=packages,
    package_dir=ROOTS,
    package_data={
        "flowmx": ["py.typed"],
        "flowmx.compat": ["shim/mxnet/*"],
        "flowmx.contrib.text": ["files.json"],
        "flowmx.observability.dashboard": ["page/*"],
        "": ["*.pyi"],
    },
)
