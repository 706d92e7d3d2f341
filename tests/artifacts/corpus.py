"""Open a folder of public artifacts, compare them with MXNet, and print the table of docs/artifacts.md.

``python -m tests.artifacts.corpus FOLDER [--mxnet PYTHON] [--write]``: FOLDER has a folder OWNER+NAME for each
repository of GitHub, with the files at their paths in it. PYTHON is an interpreter with MXNet 1.9.1.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from flowmx.artifacts import inspect, open_artifact
from flowmx.artifacts.checkpoints import checkpoint_of, find_symbols
from flowmx.artifacts.opening import shapes_at

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "artifacts.md"
START, END = "<!-- corpus -->", "<!-- end of corpus -->"
TOLERANCE = 1e-5
UNKNOWN_SIZE = 64
DATA = {"a RecordIO file": "records", "rows of LibSVM's format": "rows"}
"""The content that is compared of data sets, by the kinds of their reports."""
WITH_HELP = "only after unpacking or converting it"
INPUT = {"data": (1, 3, 224, 224)}
"""The input of symbols without parameters, whose shape is not known."""
EXPLAINED = {"vgg16_reduced-symbol.json": "differs: `SoftmaxOutput` of four axes ([differences](migration.md))"}
"""Files whose outputs differ by intention, with the reason."""


def read(folder):
    """Yield the artifacts: a checkpoint counts once."""
    described = set()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        if file in described:
            continue
        if file.name.endswith("-symbol.json"):
            described.add(checkpoint_of(file).params)
        symbols = [symbol for symbol in file.parent.glob("*-symbol.json") if checkpoint_of(symbol).params == file]
        if not symbols:
            yield file


def job(number, file, report, opened):
    """Return the line for `corpus_outputs`, or None if there is nothing to compare."""
    if report.kind.startswith(("a symbol", "a checkpoint")):
        checkpoint = checkpoint_of(file)
        params = None if checkpoint.params is None else str(checkpoint.params)
        return [number, "symbol", str(file), params, shapes(report) or INPUT]
    if opened is not None:
        checkpoint = checkpoint_of(find_symbols(opened.path)[0])
        sizes = {name: (1, *shape) for name, shape in (shapes_at(opened.path) or {}).items()}
        return [number, "symbol", str(checkpoint.symbol), str(checkpoint.params), sizes]
    if "arrays" in report.facts or "parameters" in report.kind:
        return [number, "arrays", str(file), None, {}]
    if report.kind in DATA:
        return [number, DATA[report.kind], str(file), None, {}]
    return None


def unpacked(file, report):
    """Return the model in an archive or a file of another layout; None for files that MXNet opens by their names."""
    if report.problem or report.kind.startswith(("a symbol", "a checkpoint")):
        return None
    opened = open_artifact(file, with_code=True)
    is_model = opened.scratch and opened.path.is_dir() and len(find_symbols(opened.path)) == 1
    return opened if is_model else None


def shapes(report):
    """Return the shapes of a batch of one, from the inputs of a report."""
    result = {}
    for text in report.facts.get("inputs", "").split("), "):
        name, _, sizes = text.rstrip(")").partition(" (")
        if name and sizes:
            numbers = [UNKNOWN_SIZE if size.strip() == "?" else int(size) for size in sizes.split(",") if size.strip()]
            result[name] = (1, *numbers)
    return result


def run(library, python, jobs, folder):
    """Return the results of one library."""
    (folder / "jobs").write_text("".join(json.dumps(line) + "\n" for line in jobs))
    target = folder / f"{library}.npz"
    script = str(Path(__file__).with_name("corpus_outputs.py"))
    environment = {"PYTHONPATH": str(ROOT)} if library == "flowmx" else {}
    subprocess.run([python, script, library, str(folder / "jobs"), str(target)], check=True, env=environment or None,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    return dict(np.load(target))


def verdict(number, ours, theirs):
    """Return what MXNet does, and how the results compare."""
    keys = [key for key in {**ours, **theirs} if key.startswith(f"{number}.")]
    failed = [f"{number}.error" in results for results in (ours, theirs)]
    if all(failed):
        return "refuses it", "both refuse the shape that was tried"
    if any(failed):
        return ("refuses it", "opens it") if failed[1] else ("opens it", str(ours[f"{number}.error"]))
    if any(key not in ours or key not in theirs or ours[key].shape != theirs[key].shape for key in keys):
        return "opens it", "differs in its number of arrays"
    largest = max((difference(ours[key], theirs[key]) for key in keys), default=0.0)
    return (
        "opens it",
        "equal" if largest == 0 else f"{largest:.0e}" if largest <= TOLERANCE else f"differs by {largest:.1e}",
    )


def difference(ours, theirs):
    """Return the largest difference, relative to the largest value."""
    if not ours.size:
        return 0.0
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    if np.array_equal(ours, theirs, equal_nan=True):
        return 0.0
    return float(np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max()))


def rows(folder, mxnet):
    """Return the rows of the table."""
    reports = [(file, inspect(file)) for file in read(folder)]
    models = [unpacked(file, report) for file, report in reports]
    lines = [job(number, *pair, model) for number, (pair, model) in enumerate(zip(reports, models, strict=True))]
    jobs = [line for line in lines if line is not None]
    numbers = {line[0] for line in jobs}
    with tempfile.TemporaryDirectory() as scratch:
        ours = run("flowmx", sys.executable, jobs, Path(scratch))
        theirs = run("mxnet", mxnet, jobs, Path(scratch))
    result = []
    for number, ((file, report), line) in enumerate(zip(reports, lines, strict=True)):
        repository, *parts = file.relative_to(folder).parts
        in_mxnet, compared = verdict(number, ours, theirs) if number in numbers else ("not compared", "named")
        if models[number] is not None and in_mxnet == "opens it":
            in_mxnet = WITH_HELP
        if report.problem:
            compared = f"refused: {report.problem.replace(f'{file}: ', '')}"[:160]
        if compared.startswith("differs"):
            draws = line is not None and line[1] == "symbol" and b"_sample_" in Path(line[2]).read_bytes()
            compared = "opens it; it draws random numbers" if draws else EXPLAINED.get(file.name, compared)
        result.append((repository.replace("+", "/"), "/".join(parts), report.kind, in_mxnet, compared))
    return result


def table(lines):
    """Return the table and its summary."""
    opened = [line for line in lines if line[3] == "opens it"]
    wrong = [line for line in opened if line[4] != "equal" and not line[4][0].isdigit()]
    only = [line for line in lines if line[3] in (WITH_HELP, "refuses it") and (line[4] in ("equal", "opens it") or
            line[4][0].isdigit())]  # fmt: skip
    head = (
        f"{len(lines)} artifacts from {len({line[0] for line in lines})} repositories. MXNet opens {len(opened)} of "
        f"them, and flowmx opens {len(opened) - len(wrong)} of these with equal content or outputs. flowmx opens "
        f"{len(only)} others that MXNet does not open, or only after unpacking or converting them."
    )
    body = [f"| {' | '.join(text.replace('|', '/') for text in line)} |" for line in lines]
    return "\n".join(
        [head, "", "| repository | file | what it is | MXNet 1.9.1 | flowmx |", "|---|---|---|---|---|", *body]
    )


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mxnet", default=str(Path.home() / ".cache/flowmx-peers/mxnet/bin/python"))
    parser.add_argument("--write", action="store_true", help="replace the table in docs/artifacts.md")
    options = parser.parse_args(arguments)
    text = table(rows(options.folder.resolve(), options.mxnet))
    if options.write:
        page = PAGE.read_text()
        before, _, rest = page.partition(START)
        PAGE.write_text(f"{before}{START}\n\n{text}\n\n{END}{rest.partition(END)[2]}")
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
