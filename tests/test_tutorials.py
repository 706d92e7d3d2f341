"""The code of the tutorials, and of the user's pages, runs, and prints what the pages say."""

import os
from pathlib import Path

import pytest

import flowmx as mx
from tests import tutorial

ROOT = Path(__file__).parent.parent
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PAGES = [ROOT / "docs" / name for name in ("install.md", "profiler.md", "doctor.md", "operations.md")]


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
    pytest.importorskip("sklearn" if page.stem == "gluon" else "PIL" if page.stem == "data" else "numpy")
    tutorial.run(page)


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


def test_blocks_are_found_with_what_they_print():
    first, second = tutorial.blocks(PAGE)
    assert first == tutorial.Block(2, 'print("one")\nx = 1\n', "one\n")
    assert second.code == "print(x + 1)\n" and second.printed is None


def test_a_page_that_says_something_else_is_found(tmp_path):
    (tmp_path / "page.md").write_text(PAGE.replace("\none\n", "\ntwo\n"))
    with pytest.raises(AssertionError, match=r"page\.md:2 printed\none"):
        tutorial.run(tmp_path / "page.md")
    (tmp_path / "page.md").write_text(PAGE.replace("x = 1", "x = 1 / 0"))
    with pytest.raises(ZeroDivisionError) as caught:
        tutorial.run(tmp_path / "page.md")
    assert caught.traceback[-1].lineno + 1 == 4
