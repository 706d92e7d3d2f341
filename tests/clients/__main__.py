"""Packages written for MXNet, run on flowmx and on the real MXNet 1.9.1: ``make clients``.

Makes two environments with the packages, the real MXNet in one, flowmx and its ``mxnet`` in the other; runs every case
of each client in both; compares the results, and prints a table (``docs/clients.md`` has the results).
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

CLIENTS = {
    "gluoncv 0.10.5.post0": "gluoncv_networks",
    "gluoncv 0.10.5.post0, training in double precision": "gluoncv_training",
    "gluoncv 0.10.5.post0, detection and segmentation": "gluoncv_detection",
    "gluonnlp 0.10.0": "gluonnlp_models",
    "gluonnlp 0.10.0, on sparse arrays": "gluonnlp_sparse",
    "gluonts 0.10.4": "gluonts_models",
    "sockeye 2.3.24": "sockeye_translation",
    "mxboard 0.1.0": "mxboard_logs",
    "d2lzh 1.0.0": "d2lzh_training",
    "example/ of 1.9.1": "examples",
}  # fmt: skip

SYSTEMS = {
    "mxnet": ["numpy==1.23.5", "mxnet==1.9.1"],
    # The packages are of NumPy 1.
    "flowmx": ["numpy==1.26.4", "ml-dtypes<0.5.2", "-e", f"{ROOT}[image]", str(ROOT / "packaging" / "mxnet")],
}

TOGETHER = [
    "setuptools<70", "wheel", "cython", "scipy", "pandas<2", "protobuf<4", "gluoncv==0.10.5.post0", "gluonts==0.10.4",
    "mxboard", "opencv-python-headless<4.9", "pyyaml", "portalocker", "sacrebleu==1.4.14", "ipython",
    "scikit-learn<1.6", "scikit-image<0.22", "bottleneck<1.5",
]  # fmt: skip
ALONE = ["gluonnlp==0.10.0", "sockeye==2.3.24", "d2lzh==1.0.0"]
"""Packages whose requirements name another MXNet, or what a build needs and does not say."""

ENVIRONMENT = {"MXNET_SUBGRAPH_BACKEND": "NONE"}
"""MXNet 1.9.1's fusion of a convolution with the sum after it adds the wrong input now and then (docs/migration.md)."""

BOUND, OF_GRADIENTS = 1e-5, 1e-4
"""The largest difference, relative to the largest value of an array, or to a thousandth of its column's largest.

Gradients of biases are sums of many terms that cancel each other.
"""

OF_ROUNDING = 4
"""A step may differ by so many times what a change of the weights' last bit changes."""

COLUMNS = {
    "outputs": r"(?!hybridized)(?!.*(gradient|trained)).*",
    "gradients": r"(?!hybridized)(?!.*trained).*gradient.*",
    "hybridized: outputs": r"hybridized(?!.*(gradient|trained)).*",
    "hybridized: gradients": r"hybridized(?!.*trained).*gradient.*",
    "training step: outputs": r".*trained(?!.*gradient).*",
    "training step: gradients": r".*trained.*gradient.*",
}
"""A column of the table, and the names of its arrays."""


def environment(folder, system):
    """An environment of one system with all the packages; made once."""
    python, stamp = folder / system / "bin" / "python", folder / system / "made"
    if not stamp.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder / system], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "setuptools<70", "wheel", "cython", *SYSTEMS[system]], check=True)
        subprocess.run(
            [*pip, *TOGETHER, *[each for each in SYSTEMS[system] if "==" in each or "<" in each]], check=True
        )
        subprocess.run([*pip, "--no-build-isolation", "--no-deps", *ALONE], check=True)
        stamp.touch()
    return python


def run(python, system, client, folder, cases):
    """Run a client's cases in an environment; returns how each ended."""
    target = folder / "kept" / system / client
    (target / "outcomes.json").unlink(missing_ok=True)
    with (folder / f"{system}-{client}.log").open("w") as log:
        subprocess.run(
            [python, HERE / "work.py", client, target, *cases], stdout=log, stderr=log, check=False,
            env=os.environ | ENVIRONMENT | {"CLIENTS_SHARED": str(folder / "shared")},
        )  # fmt: skip
    return outcomes(folder, system, client)


def outcomes(folder, system, client):
    """Return the outcome of each case of the last run in a system."""
    target = folder / "kept" / system / client / "outcomes.json"
    return json.loads(target.read_text()) if target.exists() else {}


def arrays(folder, system, client, case):
    """Load the arrays that a case gave in a system, by name."""
    with np.load(folder / "kept" / system / client / f"{case.replace('/', '_')}.npz") as archive:
        return {name: archive[name].astype("float64") for name in archive.files}


def difference(real, ours, floor):
    """The largest difference of two arrays, relative to the largest value or a floor."""
    if real.shape != ours.shape:
        return np.inf
    same = (real == ours) | (np.isnan(real) & np.isnan(ours))
    largest_difference = np.abs(np.where(same, 0, real) - np.where(same, 0, ours)).max(initial=0.0) / max(
        largest(real), floor
    )
    return np.inf if np.isnan(largest_difference) else float(largest_difference)


def largest(array):
    """The largest finite value of an array, without its sign."""
    return np.abs(array[np.isfinite(array)]).max(initial=0.0)


def of_rounding(name, systems, floor):
    """Return the largest change of an array, in any system, that a change of the weights' last bit makes."""
    plain = re.sub(r"^hybridized\.", "imperative.", name)
    shaken = [re.sub(r"\.(fixed|trained)", rf".\1.shaken{index}", plain) for index in range(2)]
    differences = [difference(each[plain], each[one], floor) for each in systems for one in shaken if one in each]
    return max(differences, default=0.0)


def bound(name):
    """The largest difference of an array; steps of BatchNorm on few values are judged in double precision alone."""
    return np.inf if ".trained" in name else OF_GRADIENTS if "gradient" in name else BOUND


def compared(real, ours):
    """For each column its largest difference, what may be due to rounding, and the array that is out of bounds."""
    for pattern in COLUMNS.values():
        names = [name for name in real if re.fullmatch(pattern, name) and "shaken" not in name]
        floor = max([largest(real[name]) / 1000 for name in names], default=0.0) or 1e-30
        # A ReLU that turns the other way is seen in all gradients before it, so all share what rounding does to one.
        rounding = max([of_rounding(name, (real, ours), floor) for name in names], default=0.0)
        differences = {name: difference(real[name], ours[name], floor) for name in names}
        wrong = [name for name in names if differences[name] > max(bound(name), OF_ROUNDING * rounding)]
        yield (max(differences.values()), rounding, "".join(wrong[:1])) if names else None


def row(folder, client, case, of_real, of_ours):
    """Return the table's text for a case, and its fault, if there is one."""
    if of_real["error"]:
        return [f"MXNet fails: {of_real['error'].splitlines()[0][:80]}"], ""
    if of_ours["error"]:
        return ["FAILS"], of_ours["error"].splitlines()[0][:120]
    real, ours = (arrays(folder, system, client, case) for system in SYSTEMS)
    if real.keys() != ours.keys():
        return ["DIFFERS"], f"other arrays: {sorted(real.keys() ^ ours.keys())[:3]}"
    cells, wrong = [], ""
    for comparison in compared(real, ours):
        if comparison is None:
            cells.append("")
            continue
        worst, rounding, name = comparison
        wrong = name or wrong
        cells.append(("DIFFERS: " if name else "") + f"{worst:.0e}" + (f" ({rounding:.0e})" if rounding else ""))
    return cells, wrong


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("names", nargs="*", help="clients, by the beginning of their names (default: all)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "clients", help="environments and results")
    parser.add_argument("--cases", nargs="*", default=[], help="only these cases")
    parser.add_argument(
        "--keep", nargs="*", default=[], choices=SYSTEMS, help="systems whose last results are taken, where there are"
    )
    options = parser.parse_args()
    folder = options.folder.resolve()
    pythons = {system: environment(folder, system) for system in SYSTEMS}
    failed = 0
    for title, client in CLIENTS.items():
        if options.names and not any(title.startswith(name) for name in options.names):
            continue
        real, ours = (
            (system in options.keep and outcomes(folder, system, client))
            or run(pythons[system], system, client, folder, options.cases)
            for system in SYSTEMS
        )
        print(f"\n## {title}\n\n| case | {' | '.join(COLUMNS)} | s: MXNet | flowmx |\n|{'---|' * (len(COLUMNS) + 3)}")
        for case, of_real in real.items():
            if options.cases and case not in options.cases:
                continue
            of_ours = ours.get(case, {"error": "did not come to it", "seconds": 0.0})
            cells, wrong = row(folder, client, case, of_real, of_ours)
            cells += [""] * (len(COLUMNS) - len(cells)) + [f"{each['seconds']:.0f}" for each in (of_real, of_ours)]
            print(f"| {' | '.join([case, *cells])} |" + (f" {wrong}" if wrong else ""), flush=True)
            failed += bool(wrong)
    print(f"\n{failed} cases fail or differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
