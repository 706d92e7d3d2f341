"""Packages written for MXNet, run on flowmx beside the real MXNet 1.9.1: ``make clients``.

Makes two environments with the packages, the real MXNet in one, flowmx and its ``mxnet`` in the other; runs every case
of each client in both; compares what they give, and prints a table (``--write`` puts it into ``docs/clients.md``).
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

CLIENTS = {
    "gluoncv 0.10.5": "gluoncv_networks",
    "gluonnlp 0.10.0": "gluonnlp_models",
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
    "setuptools<70", "wheel", "cython", "scipy", "pandas<2", "protobuf<4", "gluoncv==0.10.5", "gluonts==0.10.4",
    "mxboard", "opencv-python-headless<4.9", "pyyaml", "portalocker", "sacrebleu==1.4.14", "ipython",
    "scikit-learn<1.6", "scikit-image<0.22", "bottleneck<1.5",
]  # fmt: skip
ALONE = ["gluonnlp==0.10.0", "sockeye==2.3.24", "d2lzh==1.0.0"]
"""Packages whose requirements name another MXNet, or what a build needs and does not say."""

ENVIRONMENT = {"MXNET_SUBGRAPH_BACKEND": "NONE"}
"""MXNet 1.9.1's fusion of a convolution with the sum after it adds the wrong input now and then (docs/migration.md)."""

BOUND, OF_GRADIENTS = 1e-5, 1e-4
"""The largest difference, relative to the largest value of an array, or to a thousandth of the case's largest."""


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
    kept = folder / "kept" / system / client
    outcomes = kept / "outcomes.json"
    outcomes.unlink(missing_ok=True)
    with (folder / f"{system}-{client}.log").open("w") as log:
        subprocess.run(
            [python, HERE / "work.py", client, kept, *cases], stdout=log, stderr=log, check=False,
            env=os.environ | ENVIRONMENT | {"CLIENTS_SHARED": str(folder / "shared")},
        )  # fmt: skip
    return json.loads(outcomes.read_text()) if outcomes.exists() else {}


def difference(folder, client, case):
    """The largest relative difference of a case's arrays (a tenth of it for gradients), and the name of the array."""
    real, ours = (np.load(folder / "kept" / each / client / f"{case.replace('/', '_')}.npz") for each in SYSTEMS)
    worst, where = 0.0, ""
    largest = max((np.abs(real[name][np.isfinite(real[name])]).max(initial=0.0) for name in real.files), default=0.0)
    if sorted(real.files) != sorted(ours.files):
        return float("inf"), f"other arrays: {sorted(set(real.files) ^ set(ours.files))[:3]}"
    for name in real.files:
        a, b = real[name].astype("float64"), ours[name].astype("float64")
        if a.shape != b.shape:
            return float("inf"), f"{name}: {b.shape} for {a.shape}"
        if not a.size:
            continue
        scale = max(np.abs(a[np.isfinite(a)]).max(initial=0.0), float(largest) / 1000, 1e-30)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        found = float(np.where(same, 0, np.abs(a - b)).max()) / scale
        found *= BOUND / OF_GRADIENTS if "gradient" in name else 1
        if not found <= worst:
            worst, where = found, name
    return worst, where


def compared(folder, client, real, ours):
    """A row for each case: its name, how it compares, seconds of both."""
    for case, of_real in real.items():
        of_ours = ours.get(case, {"error": "did not come to it", "seconds": 0.0})
        if of_real["error"]:
            verdict = f"MXNet fails: {of_real['error'].splitlines()[0][:80]}"
        elif of_ours["error"]:
            verdict = f"FAILS: {of_ours['error'].splitlines()[0][:120]}"
        else:
            worst, where = difference(folder, client, case)
            verdict = f"{worst:.0e}" if worst <= BOUND else f"DIFFERS: {worst:.1e} in {where}"
        yield case, verdict, of_real["seconds"], of_ours["seconds"]


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("names", nargs="*", help="clients, by the beginning of their names (default: all)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "clients", help="environments and results")
    parser.add_argument("--cases", nargs="*", default=[], help="only these cases")
    parser.add_argument(
        "--keep", action="store_true", help="take MXNet's results from the last run where they are there"
    )
    given = parser.parse_args()
    folder = given.folder.resolve()
    pythons = {system: environment(folder, system) for system in SYSTEMS}
    failed = 0
    for title, client in CLIENTS.items():
        if given.names and not any(title.startswith(name) for name in given.names):
            continue
        last = folder / "kept" / "mxnet" / client / "outcomes.json"
        real = json.loads(last.read_text()) if given.keep and last.exists() else None
        real = real or run(pythons["mxnet"], "mxnet", client, folder, given.cases)
        ours = run(pythons["flowmx"], "flowmx", client, folder, given.cases)
        print(f"\n{title}\n\n| case | difference | MXNet s | flowmx s |\n|---|---|---|---|", flush=True)
        for case, verdict, theirs_seconds, our_seconds in compared(folder, client, real, ours):
            if given.cases and case not in given.cases:
                continue
            failed += verdict.startswith(("FAILS", "DIFFERS"))
            print(f"| {case} | {verdict} | {theirs_seconds:.1f} | {our_seconds:.1f} |", flush=True)
    print(f"\n{failed} cases fail or differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
