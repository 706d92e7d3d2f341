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
from flowmx.tools.im2rec.image_list import find_images, write_lists
from flowmx.tools.im2rec.packing import Options, make_record

_QUEUED_PER_PROCESS = 64
"""Number of images queued per process."""


def main(argv: Sequence[str] | None = None) -> int:
    """Write lists, or records from lists; return 1 if an image or a line was skipped, else 0.

    Raises:
        OSError: a folder or list cannot be read, or a file cannot be written.
        ValueError: an option is invalid, or there is no list.
    """
    arguments = _parser().parse_args(argv)
    prefix, root = str(Path(arguments.prefix).absolute()), str(Path(arguments.root).absolute())
    if arguments.list:
        return _write_lists(arguments, prefix, root)
    options = Options(
        root, arguments.pass_through, arguments.resize, arguments.center_crop, arguments.quality, arguments.color,
        arguments.encoding,
        arguments.pack_label,
    )  # fmt: skip
    bad = sum(pack_list(path, options, arguments.num_thread, _print) for path in _lists(prefix))
    return 1 if bad else 0


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _write_lists(arguments: argparse.Namespace, prefix: str, root: str) -> int:
    if not Path(root).is_dir():
        raise NotADirectoryError(f"im2rec: the root is {root!r}, expected a folder of images")
    items, labels = find_images(root, arguments.recursive, {extension.lower() for extension in arguments.exts})
    if not items:
        raise ValueError(f"im2rec: there are no images in {root!r} with the suffixes {', '.join(arguments.exts)}")
    for folder, label in labels.items():
        _print(f"{folder} {label}")
    paths = write_lists(prefix, items, arguments.chunks, arguments.train_ratio, arguments.test_ratio, arguments.shuffle)
    _print(f"{len(items)} images in {', '.join(paths)}")
    return 0


def _lists(prefix: str) -> list[Path]:
    """Return the lists with the prefix in their path. If it is a folder, return the lists in it and those of its name.

    Raises:
        ValueError: there is no list.
    """
    folder, parent = Path(prefix), Path(prefix).parent
    if folder.is_dir():
        paths = [*folder.glob("*.lst"), *(path for path in parent.glob("*.lst") if _belongs_to(path.stem, folder.name))]
    else:
        paths = [path for path in parent.glob("*.lst") if path.name.startswith(folder.name)]
    paths = sorted(path for path in paths if path.is_file())
    if not paths:
        raise ValueError(f"im2rec: there is no list {prefix}*.lst: create one with --list")
    return paths


def _belongs_to(stem: str, name: str) -> bool:
    """Return whether ``--list`` writes a list with this stem for a folder of this name."""
    return stem == name or stem.startswith(f"{name}_")


def pack_list(path: Path, options: Options, processes: int, report: Callable[[str], None]) -> int:
    """Write the .rec and .idx files of a list next to it, with records in the list's order.

    Args:
        path: the list.
        options: the changes to images.
        processes: the number of worker processes.
        report: called with lines about progress and skipped images.

    Returns:
        the number of skipped lines and images.

    Raises:
        OSError: the list cannot be read, or a file cannot be written.
    """
    lines = list(image_lists.read(path))
    items = [line for line in lines if isinstance(line, image_lists.Item)]
    for line in lines:
        if isinstance(line, str):
            report(f"skipped: {line}")
    skipped = len(lines) - len(items)
    report(f"{path}: {len(items)} images")
    started = time.monotonic()
    file = path.with_suffix(".rec")
    with (
        MXIndexedRecordIO(path.with_suffix(".idx"), file, "w") as record,
        Bar(len(items), path.name, unit="images") as bar,
    ):
        for item, result in zip(items, _records(items, options, processes), strict=True):
            if isinstance(result, str):
                report(f"skipped: {result}")
                skipped += 1
            else:
                record.write_idx(item.number, result)
            bar.step()
    seconds, note = time.monotonic() - started, f", {skipped} skipped" if skipped else ""
    report(f"{file}: {file.stat().st_size} bytes, {len(items)} images in {seconds:.1f} s{note}")
    return skipped


def _records(items: Sequence[image_lists.Item], options: Options, processes: int) -> Iterator[bytes | str]:
    """Yield the records in order, computed here or by spawned processes (not forked: this one may have threads)."""
    make = partial(make_record, options=options)
    if processes <= 1:
        yield from map(make, items)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        rest = iter(items)
        waiting: deque[Future[Any]] = deque(
            pool.submit(make, item) for item in islice(rest, _QUEUED_PER_PROCESS * processes)
        )
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(make, item) for item in islice(rest, 1))


def _parser() -> argparse.ArgumentParser:
    parser = usage.parser(
        "im2rec", "Write a list of images (--list), or a RecordIO file from such a list.",
        ["data/pets photos --list --recursive", "data/pets photos --resize 256 --num-thread 4"],
        exits={1: "failure, or lines or images were skipped, which the output names"},
    )  # fmt: skip
    parser.add_argument("prefix", help="prefix of the paths of lists and records")
    parser.add_argument("root", help="the folder of the images")
    lists = parser.add_argument_group("lists")
    lists.add_argument("--list", action="store_true", help="write PREFIX.lst with the images under ROOT")
    lists.add_argument(
        "--exts", nargs="+", default=[".jpeg", ".jpg", ".png"], help="suffixes of image files (default: %(default)s)"
    )
    lists.add_argument("--chunks", type=int, default=1, help="number of lists (default: %(default)s)")
    lists.add_argument(
        "--train-ratio", type=float, default=1.0, help="fraction of the images for training (default: %(default)s)"
    )
    lists.add_argument(
        "--test-ratio", type=float, default=0, help="fraction of the images for testing (default: %(default)s)"
    )
    lists.add_argument("--recursive", action="store_true", help="search subfolders too; every folder has a label")
    lists.add_argument("--no-shuffle", dest="shuffle", action="store_false", help="keep the order of the names")
    records = parser.add_argument_group("records")
    records.add_argument("--pass-through", action="store_true", help="store the files unchanged")
    records.add_argument(
        "--resize",
        type=int,
        default=0,
        help="resize the shorter side to this length; 0 keeps the size (default: %(default)s)",
    )
    records.add_argument("--center-crop", action="store_true", help="crop the central square")
    records.add_argument(
        "--quality",
        type=int,
        default=95,
        help="quality of JPEG, 1 to 100; or compression level of PNG, 1 to 9 (default: %(default)s)",
    )
    records.add_argument("--num-thread", type=int, default=1, help="number of processes (default: %(default)s)")
    records.add_argument(
        "--color",
        type=int,
        default=1,
        choices=[-1, 0, 1],
        help="channels: 1 for three, 0 for one, -1 for those of the file (default: %(default)s)",
    )
    records.add_argument(
        "--encoding",
        default=".jpg",
        choices=[".jpg", ".png"],
        help="image format in the records (default: %(default)s)",
    )
    records.add_argument("--pack-label", action="store_true", help="write all labels of a line, not only the first")
    return parser
