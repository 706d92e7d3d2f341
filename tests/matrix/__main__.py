"""Write docs/features.md."""

from pathlib import Path

from tests.matrix.page import page

if __name__ == "__main__":
    (Path(__file__).parents[2] / "docs" / "features.md").write_text(page())
