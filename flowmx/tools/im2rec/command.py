"""The command line of im2rec."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from flowmx.data import image_lists
from flowmx.progress import Bar
from flowmx.recordio import MXIndexedRecordIO
from flowmx.tools import usage
from flowmx.tools.im2rec.lists import find_images, write_lists
from flowmx.tools.im2rec.packing import Options, make_record

_AHEAD = 64
"""Images that each process has waiting."""


def main(argv: Sequence[str] | None = None) -> int:
    """Make lists, or records from lists; returns 1 where an image or a line had to be left out, else 0.

    Raises:
        OSError: a folder or list can not be read, or a file not be written.
        ValueError: an option has a value that it does not take, or there is no list.
    """
    given = _parser().parse_args(argv)
    prefix, root = str(Path(given.prefix).absolute()), str(Path(given.root).absolute())
    if given.list:
        return _make_lists(given, prefix, root)
    options = Options(
        root, given.pass_through, given.resize, given.center_crop, given.quality, given.color, given.encoding,
        given.pack_label,
    )  # fmt: skip
    bad = sum(pack_list(path, options, given.num_thread, _say) for path in _lists(prefix))
    return 1 if bad else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _make_lists(given: argparse.Namespace, prefix: str, root: str) -> int:
    if not Path(root).is_dir():
        raise NotADirectoryError(f"im2rec: the root is {root!r}, expected a folder of images")
    items, labels = find_images(root, given.recursive, {extension.lower() for extension in given.exts})
    if not items:
        raise ValueError(f"im2rec: there is no image in {root!r} whose name ends with {', '.join(given.exts)}")
    for folder, label in labels.items():
        _say(f"{folder} {label}")
    written = write_lists(prefix, items, given.chunks, given.train_ratio, given.test_ratio, given.shuffle)
    _say(f"{len(items)} images in {', '.join(written)}")
    return 0


def _lists(prefix: str) -> list[Path]:
    """The lists whose path begins with the prefix; where it is a folder, those in it, and those of its own name.

    Raises:
        ValueError: there is none.
    """
    inside, beside = Path(prefix), Path(prefix).parent
    if inside.is_dir():
        found = [*inside.glob("*.lst"), *(path for path in beside.glob("*.lst") if _is_of(path.stem, inside.name))]
    else:
        found = [path for path in beside.glob("*.lst") if path.name.startswith(inside.name)]
    found = sorted(path for path in found if path.is_file())
    if not found:
        raise ValueError(f"im2rec: there is no list {prefix}*.lst: make one first with --list")
    return found


def _is_of(stem: str, name: str) -> bool:
    """Tell whether a list is one that ``--list`` writes beside a folder of this name."""
    return stem == name or stem.startswith(f"{name}_")


def pack_list(path: Path, options: Options, processes: int, say: Callable[[str], None]) -> int:
    """Write the .rec and .idx files of a list beside it, records in the list's order.

    Args:
        path: the list.
        options: the changes to images.
        processes: the number of worker processes.
        say: called with lines about the progress, and about what is left out.

    Returns:
        how many lines and images were left out.

    Raises:
        OSError: the list can not be read, or a file not be written.
    """
    lines = list(image_lists.read(path))
    items = [line for line in lines if isinstance(line, image_lists.Item)]
    for line in lines:
        if isinstance(line, str):
            say(f"left out: {line}")
    bad = len(lines) - len(items)
    say(f"{path}: {len(items)} images")
    started = time.monotonic()
    file = path.with_suffix(".rec")
    with (
        MXIndexedRecordIO(path.with_suffix(".idx"), file, "w") as record,
        Bar(len(items), path.name, unit="images") as bar,
    ):
        for item, made in zip(items, _records(items, options, processes), strict=True):
            if isinstance(made, str):
                say(f"left out: {made}")
                bad += 1
            else:
                record.write_idx(item.number, made)
            bar.step()
    seconds, without = time.monotonic() - started, f", {bad} left out" if bad else ""
    say(f"{file}: {file.stat().st_size} bytes, {len(items)} images in {seconds:.1f} s{without}")
    return bad


def _records(items: Sequence[image_lists.Item], options: Options, processes: int) -> Iterator[bytes | str]:
    """The records in order, made here or by processes (never forked: this one may have threads)."""
    make = partial(make_record, options=options)
    if processes <= 1:
        yield from map(make, items)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        rest = iter(items)
        waiting: deque[Future[Any]] = deque(pool.submit(make, item) for item in islice(rest, _AHEAD * processes))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(make, item) for item in islice(rest, 1))


def _parser() -> argparse.ArgumentParser:
    parser = usage.parser(
        "im2rec", "Make a list of images (--list), or a RecordIO file from such a list.",
        ["data/pets photos --list --recursive", "data/pets photos --resize 256 --num-thread 4"],
        exits={1: "it failed, or something was left out, which was named"},
    )  # fmt: skip
    parser.add_argument("prefix", help="what the paths of lists and records begin with")
    parser.add_argument("root", help="the folder of the images")
    lists = parser.add_argument_group("lists")
    lists.add_argument("--list", action="store_true", help="make PREFIX.lst of the images under ROOT")
    lists.add_argument(
        "--exts", nargs="+", default=[".jpeg", ".jpg", ".png"], help="how names of images end (default: %(default)s)"
    )
    lists.add_argument("--chunks", type=int, default=1, help="split the list into so many (default: %(default)s)")
    lists.add_argument(
        "--train-ratio", type=float, default=1.0, help="share of the images to train on (default: %(default)s)"
    )
    lists.add_argument(
        "--test-ratio", type=float, default=0, help="share of the images to test on (default: %(default)s)"
    )
    lists.add_argument("--recursive", action="store_true", help="look into folders too; each has a label of its own")
    lists.add_argument("--no-shuffle", dest="shuffle", action="store_false", help="keep the order of the names")
    records = parser.add_argument_group("records")
    records.add_argument("--pass-through", action="store_true", help="take the files as they are")
    records.add_argument(
        "--resize", type=int, default=0, help="length of the shorter side; 0 leaves it (default: %(default)s)"
    )
    records.add_argument("--center-crop", action="store_true", help="cut out the square in the middle")
    records.add_argument(
        "--quality", type=int, default=95, help="of JPEG, 1 to 100; compression of PNG, 1 to 9 (default: %(default)s)"
    )
    records.add_argument("--num-thread", type=int, default=1, help="processes that work at it (default: %(default)s)")
    records.add_argument(
        "--color",
        type=int,
        default=1,
        choices=[-1, 0, 1],
        help="1: three channels, 0: one, -1: as the file has (default: %(default)s)",
    )
    records.add_argument(
        "--encoding", default=".jpg", choices=[".jpg", ".png"], help="the format in the records (default: %(default)s)"
    )
    records.add_argument("--pack-label", action="store_true", help="write all labels of a line, not the first alone")
    return parser
