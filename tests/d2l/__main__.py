"""The MXNet chapters of "Dive into Deep Learning" 0.17 on flowmx: ``python -m tests.d2l BOOK [PATTERN]``.

BOOK is a checkout of the book's tag 0.17.6. Each chapter whose path matches the pattern runs in a separate process
(``chapter.py``), with small data in place of its downloads (``data.py``). The outcome is printed; the chapter's output
goes to a file. Nothing is downloaded.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.d2l.book import cells

HERE = Path(__file__).parent


def chapters(book: Path) -> list[Path]:
    """The chapters with cells for MXNet."""
    pages = sorted(book.glob("chapter_*/*.md"))
    return [each.relative_to(book) for each in pages if cells(each.read_text(encoding="utf-8"))]


def run(book: Path, chapter: Path, python: str, system: str, seconds: float, output: Path) -> str:
    """Run a chapter. Return its error in one line, or an empty string."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "book" / "chapter"
        place.mkdir(parents=True)
        (place.parent / "img").symlink_to(book / "img")
        command = [python, "-W", "ignore", str(HERE / "chapter.py"), str(book), str(chapter), system]
        with output.open("w") as to:
            try:
                subprocess.run(command, cwd=place, stdout=to, stderr=to, timeout=seconds, check=True)
            except subprocess.TimeoutExpired:
                return f"not at its end after {seconds:g} s"
            except subprocess.CalledProcessError:
                lines = output.read_text(errors="replace").splitlines()
                return next(
                    (each for each in lines[::-1] if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", each)), "failed"
                )
    return ""


def main() -> int:
    """Run the chapters. Return 1 if one failed, or 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.d2l", description=__doc__)
    parser.add_argument("book", type=lambda text: Path(text).resolve(), help="a checkout of the book")
    parser.add_argument("pattern", nargs="?", default="", help="a regular expression")
    parser.add_argument("--python", default=sys.executable, help="the interpreter (default: this one)")
    parser.add_argument("--system", choices=["flowmx", "mxnet"], default="flowmx", help="what is imported as mxnet")
    parser.add_argument("--seconds", type=float, default=300, help="the most for a chapter")
    parser.add_argument("--output", type=Path, default=Path("build/d2l"), help="a folder for what the chapters print")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    chosen = [each for each in chapters(args.book) if re.search(args.pattern, str(each))]
    failed = 0
    for each in chosen:
        start = time.perf_counter()
        output = args.output / str(each).replace("/", ".").replace(".md", ".txt")
        wrong = run(args.book, each, args.python, args.system, args.seconds, output)
        failed += bool(wrong)
        print(f"{'failed' if wrong else 'ok':7}{time.perf_counter() - start:5.0f} s  {each}  {wrong}", flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} chapters ran to the end")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
