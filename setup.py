"""The package list of flowmx and its stubs, both made at build time; everything else stands in pyproject.toml."""

import subprocess
import sys
from pathlib import Path

from setuptools import Command, find_packages, setup
from setuptools.command import build_py, sdist

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
    if subprocess.run([sys.executable, "-m", "flowmx.tools.stubs"], cwd=Path(__file__).resolve().parent).returncode:
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


setup(
    cmdclass={"build_py": BuildPy, "sdist": SDist},
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
