"""The notebooks in examples/notebooks run from top to bottom in a kernel, and are committed without outputs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent.parent / "examples" / "notebooks").glob("*.ipynb"))
RUN = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
nbformat.validate(notebook)
nbclient.NotebookClient(notebook, timeout=100).execute()
print(sum(cell.cell_type == "code" for cell in notebook.cells))
"""


def test_there_are_six():
    assert len(NOTEBOOKS) == 6


@pytest.mark.soak
@pytest.mark.parametrize("path", NOTEBOOKS, ids=[each.stem for each in NOTEBOOKS])
def test_a_notebook_runs(path, tmp_path):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 3 and not any(cell["outputs"] or cell["execution_count"] for cell in cells)
    folders = dict.fromkeys(("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"), str(tmp_path))
    ended = subprocess.run(
        [sys.executable, "-c", RUN, str(path)], capture_output=True, text=True, timeout=110, cwd=tmp_path,
        env={**os.environ, **folders, "JUPYTER_PREFER_ENV_PATH": "1", "NO_COLOR": "1"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert int(ended.stdout) == len(cells)
