"""Which kind of artifact a path is: tables of files, by their first bytes, and of folders, by the files in them."""

from __future__ import annotations

import gzip
import json
import re
import struct
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from flowmx.artifacts import archives, data_files, models, run_files
from flowmx.artifacts.checkpoints import checkpoint_of, find_checkpoints
from flowmx.artifacts.documents import describe_json
from flowmx.artifacts.foreign import describe_foreign
from flowmx.artifacts.report import Report, bytes_text
from flowmx.artifacts.scripts import Script, find_script
from flowmx.checkpoint import files as checkpoint_files
from flowmx.comm import frames
from flowmx.data.records.framing import MAGIC as RECORD_MAGIC
from flowmx.errors import DataError
from flowmx.gluon.model_zoo import huggingface
from flowmx.optimizer import states_file
from flowmx.serialization import gguf, numpy_files, tvm_params

__all__ = ["inspect"]

_HEAD = 512
_MAX_DEPTH = 3
"""The maximum depth of nested folders and archives that are described."""
_MAX_PARTS = 50
_SERVE = "flowmx serve "
_SAFETENSORS_LIMIT = 100 << 20


def inspect(path: Path) -> Report:
    """Describe a file or folder.

    Raises:
        FileNotFoundError: there is nothing at the path, and no checkpoint with this prefix.
        OSError: it cannot be read.
    """
    return _inspect(path, _MAX_DEPTH)


def _inspect(path: Path, depth: int) -> Report:
    if path.is_dir():
        return _describe_folder(path, depth)
    if not path.exists():
        symbol = path.with_name(path.name + "-symbol.json")
        if not symbol.exists():
            raise FileNotFoundError(f"there is no file or folder {str(path)!r}, and no checkpoint {str(symbol)!r}")
        return models.describe_checkpoint(checkpoint_of(symbol))
    if not path.is_file():
        return Report(path, "neither a file nor a folder", problem="it is a pipe, a socket or a device")
    with path.open("rb") as file:
        start = file.read(_HEAD)
    if not start:
        return Report(path, "an empty file", problem="it has no content: writing or downloading it may have failed")
    for kind in _FILES:
        if kind.matches(path, start):
            return kind.describe(path)
    if (report := describe_foreign(path, start)) is not None:
        return report
    if archives.is_archive(path):
        return _describe_archive(path, depth)
    if start.lstrip()[:1] in (b"{", b"["):
        return describe_json(path)
    facts = {"size": bytes_text(path.stat().st_size), "begins with": repr(start[:16])}
    return Report(path, "unknown", facts, problem="flowmx does not know this format (docs/artifacts.md)")


# -- files -------------------------------------------------------------------------------------------------


class _File(NamedTuple):
    """A kind of file.

    Attributes:
        matches: returns whether a file is of this kind, from its path and its first bytes.
        describe: describes the file.
    """

    matches: Callable[[Path, bytes], bool]
    describe: Callable[[Path], Report]


def _begins(*magics: bytes) -> Callable[[Path, bytes], bool]:
    return lambda path, start: start.startswith(magics)


def _ends(*suffixes: str) -> Callable[[Path, bytes], bool]:
    return lambda path, start: path.name.endswith(suffixes)


def _is_safetensors(path: Path, start: bytes) -> bool:
    return len(start) > 8 and start[8:9] == b"{" and struct.unpack("<Q", start[:8])[0] < _SAFETENSORS_LIMIT


def _is_symbol(path: Path, start: bytes) -> bool:
    return start.lstrip()[:1] == b"{" and re.search(rb'"nodes"\s*:', start) is not None


def _is_array_archive(path: Path, start: bytes) -> bool:
    return start.startswith(b"PK") and archives.holds_arrays(path)


def _is_idx(path: Path, start: bytes) -> bool:
    if start.startswith(b"\x1f\x8b"):
        try:
            with gzip.open(path) as file:
                start = file.read(4)
        except (OSError, EOFError, zlib.error):
            return False
    return len(start) >= 4 and start[:2] == b"\0\0" and start[2] in (8, 9, 11, 12, 13, 14) and 0 < start[3] < 5


def _is_pickle(path: Path, start: bytes) -> bool:
    return path.suffix in (".states", ".pkl", ".pickle") or (start[:1] == b"\x80" and start[1:2] in b"\2\3\4\5")


def _is_list(path: Path, start: bytes) -> bool:
    return path.suffix == ".lst" or re.match(rb"\d+\t[\d.+-]+\t\S+", start) is not None


def _is_libsvm(path: Path, start: bytes) -> bool:
    complete = start if len(start) < _HEAD else start[: start.rfind(b" ")]
    return re.match(rb"[\d.+-]+([ \t]+\d+:[\d.eE+-]+)+[ \t]*\r?(\n|$)", complete) is not None


def _describe_symbol(path: Path) -> Report:
    return models.describe_checkpoint(checkpoint_of(path))


def _is_manifest(path: Path, start: bytes) -> bool:
    return path.name in ("MANIFEST.json", "signature.json") and start.lstrip()[:1] == b"{"


def _describe_manifest(path: Path) -> Report:
    folder = path.parent.parent if path.parent.name == "MAR-INF" else path.parent
    command = f"flowmx inspect {folder}"
    kind = f"the {path.stem.lower()} of a model of Multi Model Server"
    return Report(path, kind, commands=[command], is_detail=True)


_FILES: tuple[_File, ...] = (
    _File(_begins(gguf.MAGIC), models.describe_gguf),
    _File(_begins(struct.pack("<Q", 0x112)), models.describe_arrays),
    _File(_begins(numpy_files.MAGIC), models.describe_arrays),
    _File(_begins(tvm_params.MAGIC), models.describe_arrays),
    _File(_begins(states_file.MAGIC), data_files.describe_states),
    _File(_begins(checkpoint_files.MAGIC), run_files.describe_run),
    _File(_begins(frames.MAGIC), run_files.describe_server),
    _File(_begins(RECORD_MAGIC), data_files.describe_records),
    _File(_is_array_archive, models.describe_arrays),
    _File(_is_symbol, _describe_symbol),
    _File(_is_safetensors, models.describe_arrays),
    _File(_is_idx, data_files.describe_idx),
    _File(_ends(".onnx"), models.describe_onnx),
    _File(_is_pickle, data_files.describe_pickle),
    _File(_is_manifest, _describe_manifest),
    _File(_is_list, data_files.describe_list),
    _File(_ends(".idx"), data_files.describe_index),
    _File(_is_libsvm, data_files.describe_libsvm),
    _File(_ends(".csv"), data_files.describe_csv),
)  # fmt: skip
"""The kinds of files, the most certain first."""


def _describe_archive(path: Path, depth: int) -> Report:
    kind = "a model archive of Multi Model Server" if path.suffix == ".mar" else "an archive"
    report = Report(path, kind, {"size": bytes_text(path.stat().st_size)})
    if depth == 0:
        return report
    try:
        folder = archives.unpack(path)
    except DataError as error:
        report.problem = str(error)
        return report
    content = _describe_folder(folder.path, depth - 1)
    report.kind += f": {content.kind}" if content.parts or content.problem else ""
    report.facts |= content.facts
    report.missing, report.problem, report.parts = content.missing, content.problem, content.parts
    _add_commands(report, content)
    for part in report.parts:
        _forget_commands(part)
        part.path = path if part.path == folder.path else part.path
    return report


def _forget_commands(report: Report) -> None:
    """Remove the commands of a report and its parts, which name files of a temporary folder."""
    report.commands = []
    for part in report.parts:
        _forget_commands(part)


def _add_commands(report: Report, content: Report) -> None:
    """Add the commands for an archive that contains one model or one file of arrays."""
    parts = [part for part in content.parts if not part.is_detail]
    served = [command for part in parts for command in part.commands if command.startswith(_SERVE)]
    if content.commands or report.path.suffix == ".mar":
        report.commands.append(f"{_SERVE}{report.path}")
    elif len(served) == 1:
        _, shape, options = served[0].partition(" --shape ")
        report.commands.append(f"{_SERVE}{report.path}{shape}{options}")
    elif len(parts) == 1 and parts[0].path.parent == content.path and "arrays" in parts[0].facts:
        report.commands.append(f"flowmx convert {report.path} {parts[0].path.stem}.npz")


# -- folders -----------------------------------------------------------------------------------------------


class _Folder(NamedTuple):
    """A kind of folder.

    Attributes:
        files: patterns of files that a folder of this kind has.
        kind: what it is.
        problem: why it cannot be used as it is; empty if its files can.
    """

    files: tuple[str, ...]
    kind: str
    problem: str = ""


_FOLDERS: tuple[_Folder, ...] = (
    _Folder(("MAR-INF/MANIFEST.json",), "a model of Multi Model Server"),
    _Folder(("signature.json", "*-symbol.json"), "a model of Multi Model Server"),
    _Folder(("input_transform.json", "prediction_net-symbol.json"), "a predictor of GluonTS"),
    _Folder(
        ("input_transform.json", "prediction_net-*"), "a predictor of GluonTS",
        "the network is code of GluonTS: flowmx run runs a program that calls gluonts' Predictor.deserialize()",
    ),
    _Folder(
        ("params.best", "config", "vocab.src.*"), "a translation model of Sockeye",
        "the network is code of Sockeye: flowmx run -m sockeye.translate --models FOLDER runs it",
    ),
    _Folder(
        ("learner.pkl", "predictor.pkl"), "a predictor of AutoGluon",
        "its models are Python pickles, which run code when they are opened: load it with AutoGluon, and save the "
        "network's parameters or an ONNX file",
    ),
    _Folder(("adapter_config.json", "adapter_model.*"), "a LoRA adapter"),
    _Folder(("epoch-*-batch-*.checkpoint",), "the checkpoints of a training by flowmx"),
    _Folder(("server-*.snapshot",), "the states of the servers of a KVStore"),
    _Folder(("saved_model.pb",), "a model of TensorFlow", "convert it to ONNX with tf2onnx"),
    _Folder(("det_*.onnx", "w600k_*.onnx"), "a model pack of insightface"),
    _Folder(("image-classification-symbol.json",), "a model of SageMaker's image classification"),
    _Folder(("model_algo_1-symbol.json", "hyperparams.json"), "a model of SageMaker's object detection"),
    _Folder(("model_algo-1*", "hyperparams.json"), "a model of a built-in algorithm of SageMaker"),
    _Folder(("model_algo-1*",), "a model of a built-in algorithm of SageMaker"),
)  # fmt: skip
"""The kinds of folders, the most specific first."""


_WITH_SCRIPT = _Folder(("code/*.py",), "a model of SageMaker with a script")


def _describe_folder(path: Path, depth: int) -> Report:
    if huggingface.is_model(path):
        return models.describe_transformer(path)
    layout = next((row for row in _FOLDERS if all(any(path.glob(pattern)) for pattern in row.files)), None)
    script = find_script(path)
    if script is not None:
        layout = _WITH_SCRIPT
    report = Report(path, "a folder") if layout is None else Report(path, layout.kind, problem=layout.problem)
    _add_settings(report)
    if script is not None:
        _add_script(report, script)
    checkpoints = find_checkpoints(path)
    report.parts = [models.describe_checkpoint(checkpoint) for checkpoint in checkpoints]
    described = {file for checkpoint in checkpoints for file in (checkpoint.symbol, checkpoint.params)}
    if depth:
        for file in sorted(path.iterdir()):
            if file in described or file.name.startswith(".") or _belongs_to(file, described):
                continue
            part = _inspect(file, depth - 1)
            if not (
                part.kind in ("unknown", "an empty file")
                or (part.is_detail and part.problem)
                or (file.is_dir() and not part.parts)
            ):
                report.parts.append(part)
            if len(report.parts) > _MAX_PARTS:
                break
    if layout is None:
        _name_folder(report)
    return report


def _add_script(report: Report, script: Script) -> None:
    """Name a script and its functions; it is read, not run."""
    functions = ", ".join(script.functions) or "no functions: those of SageMaker's container are used"
    report.facts["script"] = f"{script.path} ({functions}); flowmx serve runs it"
    if script.requirements:
        report.facts["needs"] = ", ".join(script.requirements)
    report.commands = [f"{_SERVE}{report.path}"]


def _belongs_to(file: Path, described: Collection[Path | None]) -> bool:
    """Return whether a file has the parameters of another epoch of a checkpoint."""
    match = re.fullmatch(r"(.+)-\d{4}\.params", file.name)
    return match is not None and file.with_name(f"{match[1]}-symbol.json") in described


def _name_folder(report: Report) -> None:
    """Name a folder of no known layout by its content."""
    parts = [part for part in report.parts if not part.is_detail] or report.parts
    if len(parts) == 1:
        report.kind = parts[0].kind if parts[0].path.is_dir() else f"a folder with {parts[0].kind}"
        if parts[0].problem:
            report.problem = f"{parts[0].path.name}: {parts[0].problem}"
    elif parts:
        report.kind = f"a folder with {len(parts)} artifacts"
        if all(part.problem for part in parts):
            report.problem = f"none of them can be opened; {parts[0].path.name}: {parts[0].problem}"
    else:
        report.problem = "it has no file of a format that flowmx knows (docs/artifacts.md)"


_SETTINGS = ("base_network", "backbone", "algorithm", "network", "num_classes", "image_shape", "num_layers", "k")
"""Settings of SageMaker's algorithms that say which network a model has."""


def _add_settings(report: Report) -> None:
    try:
        settings: Any = json.loads((report.path / "hyperparams.json").read_text())
    except (OSError, ValueError):
        return
    if isinstance(settings, dict):
        report.facts["settings"] = ", ".join(f"{name} {settings[name]}" for name in _SETTINGS if name in settings)
