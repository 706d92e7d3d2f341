"""The code of the tutorials and user pages runs, and prints the documented output."""

import os
import re
from pathlib import Path

import pytest

import flowmx as mx
from tests import tutorial

ROOT = Path(__file__).parent.parent.parent
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PAGES = [
    ROOT / name
    for name in (
        "README.md", "docs/install.md", "docs/tour.md", "docs/checkpoints.md", "docs/profiler.md", "docs/doctor.md",
        "docs/operations.md", "docs/index.md", "docs/onnx.md", "docs/simulation.md", "docs/finetune.md",
        "docs/outputs.md", "docs/pytorch.md", "docs/fastapi.md", "docs/extending.md", "docs/keras.md",
    )
]  # fmt: skip
"""Other pages with code. docs/migration.md and docs/serving.md have separate tests."""

GIVEN = {
    "transformers": f"""
import shutil
for name in ("bert", "gpt2"):
    shutil.copytree({str(ROOT / "tests" / "fixtures" / "huggingface")!r} + "/" + name, name)
""",
    "checkpoints": """
import numpy as np
import flowmx as mx
train = mx.io.NDArrayIter(np.zeros((8, 3)), np.zeros(8), 4)
mod = mx.mod.Module(mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2), name="softmax"))
net = mx.gluon.nn.Dense(2)
net.initialize()
trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
loader = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(np.zeros((8, 3), "float32"), np.zeros(8, "float32")), 4)
loss_of, metric = mx.gluon.loss.SoftmaxCrossEntropyLoss(), mx.metric.Accuracy()
""",
    "simulation": """
import flowmx as mx
def train(devices):
    for device in devices:
        (mx.nd.ones((4,), ctx=device) * 2).wait_to_read()
""",
}
"""Code that pages assume to have run."""


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A folder to run in, without settings or a job around; what pages change of the profiler is undone."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("FLOWMX_", "DMLC_"))]:
        monkeypatch.delenv(name)
    yield
    mx.profiler.dumps(reset=True)
    mx.profiler.set_config(filename="profile.json", profile_all=True)


@pytest.mark.parametrize("page", [*TUTORIALS, *PAGES], ids=lambda page: page.stem)
@pytest.mark.usefixtures("alone")
def test_the_code_of_a_page_runs(page):
    pytest.importorskip(
        {
            "README": "sklearn",
            "finetune": "sklearn",
            "pytorch": "sklearn",
            "keras": "sklearn",
            "fastapi": "fastapi",
            "gluon": "sklearn",
            "int8": "sklearn",
            "data": "PIL",
            "onnx": "onnx",
        }.get(page.stem, "numpy")
    )
    tutorial.run(page, GIVEN.get(page.stem, ""))


COOKBOOK = ROOT / "docs" / "cookbook.md"
RECIPES = re.split(r"^### ", COOKBOOK.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.partition("\n")[0])
@pytest.mark.usefixtures("alone")
def test_each_recipe_of_the_cookbook_runs_by_itself(recipe, tmp_path):
    if "sklearn" in recipe:
        pytest.importorskip("sklearn")
    page = tmp_path / "recipe.md"
    page.write_text(recipe, encoding="utf-8")
    (block,) = tutorial.blocks(recipe)
    assert block.printed is not None
    tutorial.run(page)


def test_the_cookbook_has_thirty_one_recipes():
    assert len(RECIPES) == 31


PAGE = """
```python
print("one")
x = 1
```

```text
one
```

   ```python
print(x + 1)
   ```

Between.

```text
three
```

```sh
no python
```
"""


def test_blocks_are_found_with_their_output():
    first, second = tutorial.blocks(PAGE)
    assert first == tutorial.Block(2, 'print("one")\nx = 1\n', "one\n")
    assert second.code == "print(x + 1)\n" and second.printed is None


def test_a_page_with_different_output_is_detected(tmp_path):
    (tmp_path / "page.md").write_text(PAGE.replace("\none\n", "\ntwo\n"))
    with pytest.raises(AssertionError, match=r"page\.md:2 printed\none"):
        tutorial.run(tmp_path / "page.md")
    (tmp_path / "page.md").write_text(PAGE.replace("x = 1", "x = 1 / 0"))
    with pytest.raises(ZeroDivisionError) as caught:
        tutorial.run(tmp_path / "page.md")
    assert caught.traceback[-1].lineno + 1 == 4
