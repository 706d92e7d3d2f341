"""Figure 8 of MXNet's paper, redrawn: how long a pass over ILSVRC12 takes on 1 to 10 machines, and on 256.

``python -m benchmarks figure8`` simulates it from the measurements of ``python -m benchmarks figure8_measure``. It
compares the simulation with real jobs on hosts in network namespaces, where the system permits them, and writes tables
and a picture into ``docs/scaling.md``.
"""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from benchmarks import curves, hosted, turns
from flowmx.kvstore.simulation import Network, Profile, Setting, simulate
from tests.hosts import Link, unavailable

DOCS = Path(__file__).parent.parent / "docs"
PROFILE = Path(__file__).parent / "profiles" / "inception_bn.json"
NETWORK, MEASURED_BATCH = "inception_bn", 16
BEGIN, END = "<!-- figure 8: begin -->", "<!-- figure 8: end -->"

IMAGES = 1_281_167  # of ILSVRC12
BATCH = 144  # per machine: 36 for each of the paper's four GPUs
SPEEDS = {"the paper's GPUs": 91.5, "10 times as fast": 915.0, "30 times as fast": 2745.0}
"""Images a second on one machine. In the paper a pass on one machine takes 14,000 s."""
MACHINES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
PLANNED = 256
WIRE = Network(rate=10e9, latency=50e-6)

BAR_MACHINES, BAR_LINEAR, BAR_PREDICTION = 10, 0.9, 0.15


def measure() -> Profile:
    """Measure the network's steps and the store's costs on this machine, and write them into the profile."""
    profile = turns.run("figure8_layers", "flowmx", [NETWORK, str(MEASURED_BATCH)])
    return _save({**profile, "costs": turns.run("figure8_costs", "flowmx"), "about": _about()})


class Predicted(NamedTuple):
    """Seconds of a step and of a pass over all images."""

    step: float
    data_pass: float
    linear: float
    """The share of linear scaling: 1 where twice the machines take half the time."""


Figures = dict[str, dict[bool, dict[int, Predicted]]]
"""By speed, overlap and machines."""


def predict(profile: Profile, machines: Sequence[int] = MACHINES, planned: int | None = PLANNED) -> Figures:
    """Simulate every setting, on all cores; ``planned`` machines take one step at the paper's speed, with overlap."""
    runs = [(name, overlap, count) for name in SPEEDS for overlap in (True, False) for count in machines]
    if planned:
        runs.insert(0, (next(iter(SPEEDS)), True, planned))
    figures: Figures = {name: {True: {}, False: {}} for name in SPEEDS}
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        settings = [
            Setting(profile.at(BATCH / SPEEDS[name]), count, WIRE, overlap, steps=1 if count == planned else 2)
            for name, overlap, count in runs
        ]
        for (name, overlap, count), times in zip(runs, pool.map(predicted, settings), strict=True):
            figures[name][overlap][count] = times
    return {name: {overlap: dict(sorted(times.items())) for overlap, times in each.items()}
            for name, each in figures.items()}  # fmt: skip


def predicted(setting: Setting) -> Predicted:
    """Simulate one job."""
    step = simulate(setting)
    return Predicted(step, step * IMAGES / (setting.machines * BATCH), setting.profile.seconds / step)


class Compared(NamedTuple):
    """A real job and its prediction, in seconds of a step."""

    computing: float
    overlap: bool
    rate: float
    real: float
    predicted: float

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted / self.real - 1


HOSTS, STEPS, LINK = 4, 3, Link(rate=100e6, latency=1e-4)
COMPUTING = (5.0, 8.0)
"""Seconds of a step on hosts whose links are slowed down, so that two cores can stand for four machines."""


def compare(profile: Profile) -> list[Compared]:
    """Run real jobs whose computation is timed waits, and predict their step times.

    Also measures the traffic that plain connections reach over these links, all at once, and how long the waits take.
    """
    rate = hosted.traffic(HOSTS, LINK, seconds=8.0)
    network = Network(rate=rate, latency=2 * LINK.latency)
    comparisons = []
    for seconds in COMPUTING:
        for overlap in (True, False):
            real = hosted.training(HOSTS, LINK, PROFILE, seconds, overlap, STEPS)
            setting = Setting(profile.at(real["waits"]), HOSTS, network, overlap, STEPS)
            comparisons.append(Compared(seconds, overlap, rate, real["step"], simulate(setting)))
    return comparisons


def table(figures: Figures) -> str:
    """Return the seconds of a data pass and the share of linear scaling, as a table."""
    names = {True: "with overlap", False: "without overlap"}
    head = ["machines", *(f"{name}, {names[overlap]}" for name in figures for overlap in names)]
    counts = next(iter(figures.values()))[True]
    rows = [
        [str(count), *(_cell(times[overlap].get(count)) for times in figures.values() for overlap in names)]
        for count in counts
    ]
    return _markdown([head, ["---:"] * len(head), *rows])


def _cell(prediction: Predicted | None) -> str:
    return "" if prediction is None else f"{prediction.data_pass:,.0f} s ({prediction.linear:.2f})"


def compared_table(comparisons: Sequence[Compared]) -> str:
    """Return real jobs and their predictions as a table."""
    head = ["computation", "overlap", "real step", "predicted step", "error"]
    rows = [
        [f"{each.computing:g} s", "yes" if each.overlap else "no", f"{each.real:.2f} s", f"{each.predicted:.2f} s",
         f"{100 * each.error:+.0f} %"]
        for each in comparisons
    ]  # fmt: skip
    return _markdown([head, ["---:"] * len(head), *rows])


def bars(figures: Figures, compared: Sequence[Compared]) -> str:
    """Return the lines of the report that compare figures with their bars."""
    worst = min(times[True][BAR_MACHINES].linear for times in figures.values())
    paper = figures[next(iter(SPEEDS))][True][BAR_MACHINES].linear
    scaled = (
        f"* At least {BAR_LINEAR} of linear scaling on {BAR_MACHINES} machines with overlap, at the speed of the "
        "paper's GPUs"
    )
    lines = [f"{scaled}: {paper:.2f}, {_verdict(paper >= BAR_LINEAR)} (the lowest at all speeds: {worst:.2f})."]
    if compared:
        largest = max(abs(each.error) for each in compared)
        lines.append(
            f"* Predictions within {100 * BAR_PREDICTION:.0f} % of real runs on {HOSTS} hosts: at most "
            f"{100 * largest:.0f} % off, {_verdict(largest <= BAR_PREDICTION)}."
        )
    return "\n".join(lines)


def draw(figures: Figures) -> str:
    """Return the picture: the speed of several machines relative to one."""
    panels: dict[str, list[curves.Curve]] = {}
    for name, times in figures.items():
        counts = [count for count in times[True] if count <= max(MACHINES)]
        linear: list[tuple[float, float]] = [(count, count) for count in counts]
        panels[f"{name} ({SPEEDS[name]:g} images/s each)"] = [
            ("linear", "#bdbdbd", linear),
            ("with overlap", "#08519c", [(count, count * times[True][count].linear) for count in counts]),
            ("without overlap", "#e6550d", [(count, count * times[False][count].linear) for count in counts]),
        ]
    return curves.picture("GoogLeNet with BatchNorm, 10 Gbit/s: speed of many machines over one",
                          ("machines", "times one machine"), panels)  # fmt: skip


def write(profile: Profile, figures: Figures, compared: Sequence[Compared], folder: Path = DOCS) -> None:
    """Write the tables and the picture into the documentation."""
    (folder / "figure8.svg").write_text(draw(figures))
    page = folder / "scaling.md"
    before, rest = page.read_text().split(BEGIN)
    today = datetime.date.today().isoformat()
    parts = [
        BEGIN, f"Simulated on {today} with `python -m benchmarks figure8`, from durations measured {profile.about}.",
        "![Figure 8](figure8.svg)",
        "The next table has the time of a data pass, and in parentheses the fraction of linear scaling:",
        table(figures),
    ]  # fmt: skip
    if compared:
        links = f"{LINK.rate / 1e6:g} Mbit/s, over which plain connections carry {compared[0].rate / 1e6:.0f} Mbit/s"
        title = (
            f"The next table compares predictions with real jobs on {HOSTS} hosts with links of {links} in each "
            f"direction at once. The real step is the mean of {STEPS} steps:"
        )
        parts += [title, compared_table(compared)]
    page.write_text(before + "\n\n".join([*parts, "Targets:", bars(figures, compared), END]) + rest.split(END)[1])


def run() -> None:
    """Simulate, run the real jobs, and write the page; nothing is measured again."""
    profile = Profile.load(PROFILE)
    figures = predict(profile)
    print(table(figures), flush=True)
    reason = unavailable()
    compared = [] if reason else compare(profile)
    print(f"\n{compared_table(compared) if compared else f'no real runs: {reason}'}")
    print(f"\n{bars(figures, compared)}")
    write(profile, figures, compared)


def _save(contents: dict[str, object]) -> Profile:
    PROFILE.parent.mkdir(exist_ok=True)
    PROFILE.write_text(json.dumps(contents) + "\n")
    return Profile.load(PROFILE)


def _about() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = f"{len(models)} cores of {models[0]}" if models else platform.processor()
    return f"on {datetime.date.today().isoformat()}, at batch {MEASURED_BATCH}, on {cpu}"


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
