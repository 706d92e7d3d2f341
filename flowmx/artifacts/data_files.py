"""Reports of data: RecordIO files and their lists, MNIST, LibSVM, CSV, optimizer states, pickles."""

from __future__ import annotations

import gzip
import pickletools
import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from flowmx.artifacts.foreign import owner_of, reason_of_pickle
from flowmx.artifacts.report import Report, arrays_text, bytes_text, names_text
from flowmx.data.records.header import unpack
from flowmx.data.records.index import read_index
from flowmx.data.records.reader import Source
from flowmx.errors import MXNetError
from flowmx.optimizer import mxnet_states, states_file
from flowmx.serialization import pickled_arrays

__all__ = [
    "describe_csv",
    "describe_idx",
    "describe_index",
    "describe_libsvm",
    "describe_list",
    "describe_pickle",
    "describe_records",
    "describe_states",
]

_IMAGES = {b"\xff\xd8": "JPEG images", b"\x89P": "PNG images", b"\x93N": "NumPy arrays"}
_GZIP = b"\x1f\x8b"
_MODULES_SHOWN = 4
_HEAD = 1 << 16


def describe_records(path: Path) -> Report:
    """Describe a RecordIO file by its first record, and count the records."""
    report = Report(path, "a RecordIO file", {"size": bytes_text(path.stat().st_size)})
    index = path.with_suffix(".idx")
    try:
        source = Source(path)
        offsets = list(source.offsets(0, source.size()))
        report.facts["records"] = f"{len(offsets):,}"
        if offsets:
            header, content = unpack(source.record(offsets[0], 1 << 18)[0])
            count = header.flag or 1
            report.facts["labels"] = f"{count} number{'s' if count > 1 else ''} in each record"
            report.facts["content"] = _IMAGES.get(content[:2], f"bytes, {len(content)} in the first record")
    except (MXNetError, OSError, ValueError) as error:
        report.problem = str(error)
        return report
    if index.exists():
        report.facts["index"] = index.name
    else:
        report.missing.append(
            f"the index {index.name}: needed to shuffle; python -m flowmx im2rec writes one, or read in file order"
        )
    is_image = report.facts.get("content") in _IMAGES.values()
    reader = "mx.io.ImageRecordIter(path_imgrec=...)" if is_image else "mx.recordio.MXRecordIO(..., 'r')"
    report.commands.append(reader.replace("...", repr(str(path)), 1))
    if is_image:
        report.commands.append(f"flowmx train {path}")
    return report


def describe_index(path: Path) -> Report:
    """Describe the index of a RecordIO file."""
    report = Report(path, "an index of a RecordIO file")
    try:
        report.facts["records"] = f"{len(read_index(path)):,}"
    except (ValueError, OSError) as error:
        report.problem = str(error)
    records = path.with_suffix(".rec")
    if not records.exists():
        report.missing.append(f"the records themselves: {records.name}")
    else:
        report.commands.append(f"flowmx inspect {records}")
    return report


def describe_list(path: Path) -> Report:
    """Describe a list of images, as im2rec writes it."""
    first = _first_line(path).split("\t")
    report = Report(path, "a list of images for im2rec", {"lines": f"{sum(1 for _ in _lines(path)):,}"})
    report.facts["labels"] = f"{max(len(first) - 2, 0)} in the first line"
    report.commands.append(f"flowmx im2rec {path.with_suffix('')} FOLDER_OF_IMAGES")
    return report


def describe_libsvm(path: Path) -> Report:
    """Describe a text file of sparse rows."""
    return _table(path, "rows of LibSVM's format", f"mx.io.LibSVMIter({str(path)!r}, data_shape=(FEATURES,), ...)")


def describe_csv(path: Path) -> Report:
    """Describe a text file of numbers separated by commas."""
    columns = _first_line(path).count(",") + 1
    report = _table(path, "rows of comma-separated values", f"mx.io.CSVIter({str(path)!r}, ({columns},), ...)")
    report.facts["columns"] = str(columns)
    return report


def _table(path: Path, kind: str, command: str) -> Report:
    facts = {"rows": f"{sum(1 for _ in _lines(path)):,}", "size": bytes_text(path.stat().st_size)}
    return Report(path, kind, facts, commands=[command])


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


def _first_line(path: Path) -> str:
    with path.open("rb") as file:
        return file.readline(1 << 16).decode("utf-8", "replace").rstrip("\n")


def describe_idx(path: Path) -> Report:
    """Describe a file of MNIST's format, compressed or not."""
    with path.open("rb") as file:
        is_compressed = file.read(2) == _GZIP
    try:
        with gzip.open(path) if is_compressed else path.open("rb") as file:
            axes = file.read(4)[3]
            shape = struct.unpack(f">{axes}I", file.read(4 * axes))
    except (EOFError, struct.error, zlib.error) as error:
        return Report(path, "a damaged IDX file", problem=f"its header cannot be read: {error}")
    report = Report(path, "an IDX file, the format of MNIST", {"shape": str(shape)})
    report.commands.append("mx.io.MNISTIter(image=..., label=...)")
    return report


def describe_states(path: Path) -> Report:
    """Describe optimizer states in flowmx's format."""
    report = Report(path, "optimizer states of flowmx")
    try:
        content = states_file.loads(path.read_bytes())
    except ValueError as error:
        report.problem = str(error)
        return report
    return _add_states(report, len(content.states), str((content.optimizer or {}).get("optimizer", "")))


def describe_pickle(path: Path) -> Report:
    """Describe a pickle by the names in it; nothing is imported or called."""
    data = path.read_bytes()
    try:
        states, optimizer = mxnet_states.loads(data)
    except (MXNetError, ValueError):
        return _other_pickle(path, data)
    report = Report(path, "optimizer states of MXNet")
    return _add_states(report, len(states), type(optimizer).__name__ if optimizer is not None else "")


def _add_states(report: Report, count: int, optimizer: str) -> Report:
    report.facts["states"] = f"of {count} parameters"
    if optimizer:
        report.facts["optimizer"] = optimizer
    report.commands += [
        f"trainer.load_states({report.path.name!r})",
        f"flowmx convert {report.path} {report.path.stem}-new.states",
    ]
    return report


def _other_pickle(path: Path, data: bytes) -> Report:
    report = Report(path, "a Python pickle", {"size": bytes_text(path.stat().st_size)})
    try:
        modules = dict.fromkeys(islice(_modules(data), 10_000))
    except ValueError:  # joblib puts arrays between the opcodes
        modules = dict.fromkeys(name for name in ("sklearn", "joblib", "xgboost") if name.encode() in data[:_HEAD])
        report.kind = "a Python pickle with raw data" if modules else "a damaged Python pickle"
    if modules:
        names = list(modules)
        report.facts["modules"] = ", ".join(names[:_MODULES_SHOWN]) + (", ..." if len(names) > _MODULES_SHOWN else "")
    try:
        arrays = pickled_arrays.loads(data, source=str(path))
    except MXNetError:
        report.problem = reason_of_pickle(list(modules))
        return report
    report.facts["arrays"] = arrays_text(arrays)
    report.facts["names"] = names_text(arrays)
    if owner := owner_of(list(modules)):
        report.missing.append(f"the code: objects of {owner} are not created here, only their arrays are read")
    report.commands.append(f"flowmx convert {path} {path.stem}.npz")
    return report


def _modules(data: bytes) -> Iterator[str]:
    """Yield the top-level modules that a pickle names."""
    texts: list[str] = []
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name == "GLOBAL":
            yield str(argument).partition(" ")[0].partition(".")[0]
        elif opcode.name == "STACK_GLOBAL" and len(texts) > 1:
            yield texts[-2].partition(".")[0]
        elif isinstance(argument, str):
            texts.append(argument)
