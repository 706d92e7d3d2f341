"""The parts of the dashboard without I/O: series, lanes, warnings, curves, and access rights."""

import asyncio
import gc
import itertools
import json
import math
import os
import re
import shutil
import subprocess
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

import flowmx as mx
from flowmx.comm.security import InsecureAddress
from flowmx.engine import engine
from flowmx.generation import Generator
from flowmx.observability import dashboard
from flowmx.observability.dashboard import access_control, memory_owners, reader
from flowmx.observability.dashboard.access_control import COOKIE, Guard, check_address
from flowmx.observability.dashboard.memory_owners import layers, with_rest
from flowmx.observability.dashboard.process_state import Reading
from flowmx.observability.dashboard.series import Sampler
from flowmx.observability.dashboard.tables import quantile
from flowmx.observability.dashboard.timeline import MAX_BARS, Lanes, OpSpan, busy, limit_bars, merge_runs
from flowmx.observability.dashboard.warning_history import PRESENT, WarningHistory
from flowmx.observability.doctor.rules import FAILED, Finding
from flowmx.observability.flight import curves
from flowmx.observability.flight.curves import Curve
from flowmx.observability.flight.report_registry import reports as flight_reports
from tests.generation.test_generator import Scripted
from tests.serve.sessions.test_session import Sums, opened, summing  # noqa: F401 (a fixture)

SECRET = "a secret of some letters"

# -- series ----------------------------------------------------------------------------------------------------


def client(frames):
    """Return the state of a page that has received these frames; state.js computes the same."""
    times, series, bars, points = [], {}, [], {}
    for frame in frames:
        assert json.loads(json.dumps(frame, allow_nan=False)) == frame
        if frame.get("whole"):
            times, series, bars, points = list(frame["times"]), dict(frame["series"]), list(frame["bars"]), {}
        else:
            before = len(times)
            times.append(frame["at"])
            bars += frame["bars"]
            for name in frame["values"]:
                series.setdefault(name, [None] * before)
            for name, column in series.items():
                series[name] = [*column, frame["values"].get(name)]
        for name, curve in frame["curves"].items():
            points[name] = [*points.get(name, [])[: curve["from"]], *curve["points"]]
    return times, series, bars, points


steps = st.lists(
    st.tuples(
        st.floats(0.01, 20), st.dictionaries(st.sampled_from(["cpu(0)", "net"]), st.integers(0, 50), max_size=2),
        st.lists(st.floats(-1e3, 1e3) | st.just(math.nan), max_size=30),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@given(steps, st.data())
def test_a_late_viewer_gets_the_same_frames(result, data):
    sampler, curve, at, executed = Sampler(capacity=1000), Curve(), 0.0, {"cpu(0)": 0, "net": 0}
    early, late = [], []
    join = data.draw(st.integers(0, len(result) - 1))
    for number, (seconds, ran, logged) in enumerate(result):
        at += seconds
        executed = {name: count + ran.get(name, 0) for name, count in executed.items()}
        for value in logged:
            curve.add(value)
        ended = [OpSpan("cpu(0)", "dot", at - seconds, at)]
        curves = {"loss": (curve.generation, curve.points.copy(), curve.last)}
        frame = sampler.add(Reading(at=at, executed=executed, ended=ended, curves=curves)).content
        early.append(frame)
        late += [sampler.whole().content] if number == join else [frame] if number > join else []
    for actual, expected in zip(client(late), client(early), strict=True):
        assert actual == expected


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_page_merges_frames_identically(tmp_path):
    sampler, curve, frames = Sampler(), Curve(), []
    for at in range(40):
        for value in range(50):
            curve.add(value + at)
        curves = {"loss": (curve.generation, curve.points.copy(), curve.last)}
        executed = {"cpu(0)": at, **({"net": at} if at > 3 else {})}
        frame = sampler.add(
            Reading(at=at / 2, executed=executed, ended=[OpSpan("a", "x", at, at + 0.5)], curves=curves)
        )
        frames.append(sampler.whole().content if at == 0 else frame.content)
    assert curve.generation > 1
    (tmp_path / "frames.json").write_text(json.dumps(frames))
    state = (Path(access_control.__file__).parent / "page" / "state.js").read_text()
    (tmp_path / "state.mjs").write_text(state)
    (tmp_path / "run.mjs").write_text(
        "import { readFileSync } from 'node:fs'; import { applyFrame, empty } from './state.mjs';\n"
        "const state = JSON.parse(readFileSync(process.argv[2])).reduce(applyFrame, empty());\n"
        "console.log(JSON.stringify([state.times, state.series, state.bars, state.curves]));"
    )
    command = ["node", str(tmp_path / "run.mjs"), str(tmp_path / "frames.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [*client(frames)]


def test_rates_cover_the_time_between_readings():
    sampler = Sampler()
    sampler.add(Reading(at=10.0, executed={"cpu(0)": 100}, steps=1, samples=64))
    ended = [OpSpan("cpu(0)", "dot", 9.0, 10.25), OpSpan("cpu(0)", "dot", 10.2, 10.5)]
    frame = sampler.add(Reading(at=11.0, executed={"cpu(0)": 150}, steps=3, samples=192, ended=ended)).content
    values = frame["values"]
    assert (values["operations"], values["steps"], values["samples"]) == (50, 2, 128)
    assert values["busy.cpu(0)"] == 0.5 and frame["now"]["actors"][0]["rate"] == 50


def test_running_operations_count_as_busy():
    sampler = Sampler()
    sampler.add(Reading(at=0.0, executed={"cpu(0)": 0}))
    frame = sampler.add(Reading(at=1.0, executed={"cpu(0)": 0}, running=[("cpu(0)", "stuck", 0.25)])).content
    assert frame["values"]["busy.cpu(0)"] == 0.75
    assert frame["now"]["actors"][0]["running"] == {"name": "stuck", "began": 0.25}


def test_no_rates_after_a_pause():
    sampler = Sampler()
    sampler.add(Reading(at=0.0, executed={"cpu(0)": 0}))
    assert "operations" not in sampler.add(Reading(at=100.0, executed={"cpu(0)": 5})).content["values"]


def test_stored_data_is_bounded():
    sampler = Sampler(20)
    for at in range(100):
        sampler.add(Reading(at=float(at), ended=[OpSpan(f"a{n}", "x", at, at + 0.5) for n in range(100)]))
    whole = sampler.whole().content
    assert len(whole["times"]) == 20 == len(whole["series"]["pending"])
    assert len(whole["bars"]) == 2048


def service(answered, counts, queued=0):
    report = {"model": "m", "version": 0, "accepting": True, "queued": queued, "limit": 8, "pending": 1}
    requests = {"answered": answered, "refused": 3, "failed": 0}
    return {"serving m": {**report, "requests": requests, "latency": {"bounds": [0.1, 1.0], "counts": counts}}}


def test_a_service_by_rate_queue_and_latency():
    sampler = Sampler()
    sampler.add(Reading(at=0.0, reports=service(0, [])))
    sampler.add(Reading(at=1.0, reports=service(10, [100, 0, 0])))
    frame = sampler.add(Reading(at=3.0, reports=service(30, [100, 20, 0], queued=5))).content
    values, (row,) = frame["values"], frame["now"]["services"]
    assert (values["served.m.rate"], values["served.m.p99"], values["served.m.queued"]) == (10, 1.0, 5)
    assert row["rate"] == 10 and row["requests"]["refused"] == 3
    later = sampler.add(Reading(at=14.0, reports=service(30, [100, 20, 0]))).content["values"]
    assert "served.m.p99" not in later or later["served.m.p99"] == 1.0


async def test_the_report_of_sessions_names_those_that_wait(opened):  # noqa: F811
    def reports():
        return {name: each for name, each in flight_reports().items() if "sessions" in each}

    predictor = summing()
    async with predictor, predictor.session("kitchen") as one, predictor.session("hall") as two:
        await one([1, 0])
        Sums.let.clear()
        running = one.begin(np.ones(2, np.float32))
        waiting = [two.begin(np.ones(2, np.float32)) for _ in range(2)]
        (report,) = reports().values()
        Sums.let.set()
        await asyncio.gather(running, *waiting)
    sessions = report["sessions"]
    assert (sessions["open"], sessions["waiting"] + sessions["running"]) == (2, 3)
    assert {each["name"] for each in sessions["longest"]} <= {"kitchen", "hall"}
    sampler = Sampler()
    frame = sampler.add(Reading(at=0.0, reports={"serving model": report})).content
    assert frame["values"]["served.model.sessions"] == 2
    assert frame["now"]["services"][0]["sessions"]["limit"] == 16384


def generator(tokens, counts, pages=0):
    report = {"generator": "m", "running": 2, "waiting": 3, "limit": 8, "pages": pages, "page_count": 20}
    first = {"bounds": [0.1, 1.0], "counts": counts}
    more = {"preemptions": 1, "tokens": tokens, "prompt_tokens": 10 * tokens, "adapters": {"german": 1}}
    return {"generating m": {**report, **more, "first_token": first}}


def test_a_generator_by_rate_cache_and_first_token():
    sampler = Sampler()
    assert sampler.add(Reading(at=0.0)).content["now"]["generators"] == []
    sampler.add(Reading(at=1.0, reports=generator(0, [])))
    frame = sampler.add(Reading(at=3.0, reports=generator(60, [9, 1, 0], pages=5))).content
    values, (row,) = frame["values"], frame["now"]["generators"]
    assert (values["generated.m.rate"], values["generated.m.prompts"], values["generated.m.cache"]) == (30, 300, 0.25)
    assert (row["first"], row["running"], row["waiting"], row["adapters"]) == (1.0, 2, 3, {"german": 1})


async def test_the_reports_of_a_generator():
    def reports():
        return [each for each in flight_reports().values() if each.get("generator") == "tiny"]

    generator = Generator(Scripted(pages=10), name="tiny")
    await generator([1], temperature=0, max_tokens=6)
    (report,) = reports()
    assert (report["tokens"], report["prompt_tokens"], report["page_count"]) == (6, 1, 10)
    assert sum(report["first_token"]["counts"]) == 1
    del generator
    gc.collect()
    assert reports() == []


def test_peers_by_traffic_and_health():
    reports = {"kvstore": {
        "node": "worker 0", "doing": "training", "waits": [],
        "peers": [
            {"name": "server 0", "state": "alive", "why": ""}, {"name": "worker 1", "state": "gone", "why": "silent"},
        ],
    }}  # fmt: skip
    sampler = Sampler()
    sampler.add(Reading(at=0.0, reports=reports))
    exchanges = [("server 0", 100, 0.5), ("server 0", 300, 1.5)]
    frame = sampler.add(Reading(at=2.0, reports=reports, exchanges=exchanges, waiting={"server 0": 1})).content
    rows = {row["name"]: row for row in frame["now"]["peers"]}
    assert frame["values"]["traffic"] == 200
    assert (rows["server 0"]["requests"], rows["server 0"]["bytes"], rows["server 0"]["seconds"]) == (2, 400, 1.0)
    assert (rows["worker 1"]["state"], rows["worker 1"]["why"]) == ("gone", "silent")
    assert frame["now"]["nodes"][0]["name"] == "worker 0"


@given(st.lists(st.integers(0, 20), min_size=4, max_size=4).filter(any), st.floats(0.01, 1))
def test_a_quantile_has_its_fraction_of_values_below(counts, share):
    bounds = [1.0, 2.0, 3.0]
    actual = quantile(bounds, counts, share)
    below = sum(count for bound, count in zip(bounds, counts, strict=False) if bound <= actual)
    assert below >= share * sum(counts) or actual == bounds[-1]


# -- the timeline ----------------------------------------------------------------------------------------------

spans = st.lists(
    st.tuples(st.sampled_from("ab"), st.floats(0, 10), st.floats(0, 1)).map(
        lambda each: OpSpan(each[0], "x", each[1], each[1] + each[2])
    ),
    max_size=60,
)


@given(spans)
def test_bars_of_a_lane_do_not_overlap(ended):
    bars = Lanes().place(ended)
    assert sorted((bar.actor, bar.began, bar.ended) for bar in bars) == sorted(
        (op.actor, op.began, op.ended) for op in ended
    )
    for _, lane in itertools.groupby(sorted(bars, key=lambda bar: bar[:2]), key=lambda bar: bar[:2]):
        row = sorted(lane, key=lambda bar: bar.began)
        assert all(a.ended <= b.began for a, b in itertools.pairwise(row))


@given(st.lists(st.tuples(st.floats(1e-6, 1e-2), st.floats(0, 1e-2)), max_size=600))
def test_many_bars_are_merged_without_loss(result):
    at, ended = 0.0, []
    for took, gap in result:
        ended.append(OpSpan("a", f"op{len(ended) % 3}", at, at + took, failed=len(ended) == 7))
        at += took + gap
    bars = limit_bars(Lanes().place(ended))
    assert len(bars) <= MAX_BARS and sum(bar.number for bar in bars) == len(ended)
    assert any(bar.failed for bar in bars) == (len(ended) > 7)
    assert all(a.ended <= b.began for a, b in itertools.pairwise(bars))


notes = st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 1e-2), st.floats(0, 1e-2), st.booleans()), max_size=200)


@given(notes)
def test_consecutive_short_operations_are_merged(result):
    at, records = {"a": 0.0, "b": 0.0}, []
    for serial, (actor, took, gap, failed) in enumerate(result):
        began = at[actor] + gap
        at[actor] = began + took
        records.append((serial, f"op{serial}", actor, None, began, at[actor], failed))
    actual = merge_runs(sorted(records, key=lambda note: note[5]), 0.004)
    assert sum(run.number for run in actual) == len(records)
    for actor in "ab":
        theirs, before = [run for run in actual if run.actor == actor], [note for note in records if note[2] == actor]
        assert all(a.ended <= b.began for a, b in itertools.pairwise(theirs))
        assert sum(run.worked for run in theirs) == pytest.approx(sum(note[5] - note[4] for note in before))
        for run in theirs:
            inside = [note for note in before if run.began <= note[4] and note[5] <= run.ended]
            assert run.number == 1 or run.ended - run.began < 0.004
            assert run.failed == any(note[6] for note in inside) or len(inside) > run.number
            assert run.longest == pytest.approx(max(note[5] - note[4] for note in inside))


def test_a_long_operation_keeps_its_name_among_short_ones():
    ended = [OpSpan("a", "short", at * 1e-3, at * 1e-3 + 1e-4) for at in range(400)] + [OpSpan("a", "long", 0.4, 0.9)]
    assert any(bar.name == "long" and bar.number == 1 for bar in limit_bars(Lanes().place(ended)))


@given(st.lists(st.tuples(st.floats(-1, 3), st.floats(0, 3)).map(lambda each: (each[0], each[0] + each[1]))))
def test_busy_is_the_fraction_of_time_with_work(result):
    step = 1e-3
    marks = sum(any(a <= at * step < b for a, b in result) for at in range(1000))
    assert busy(result, 0.0, 1.0) == pytest.approx(marks * step, abs=2 * step * (len(result) + 1))


# -- warnings --------------------------------------------------------------------------------------------------


def test_a_resolved_warning_stays_for_a_while():
    warnings = WarningHistory()
    nan, slow = Finding(65, "NaN", "p", "x", "line"), Finding(90, "blocked event loop", "p", "y")
    warnings.add([nan], 0.0)
    warnings.add([nan, slow], 3.0)
    assert [(row["kind"], row["seconds"]) for row in warnings.rows(4.0)] == [("blocked event loop", 0.0), ("NaN", 3.0)]
    warnings.add([nan], 3.0 + PRESENT)
    present = {row["kind"]: row["present"] for row in warnings.rows(3.0 + PRESENT)}
    assert present == {"NaN": True, "blocked event loop": False}
    warnings.add([], 1000.0)
    assert warnings.rows(1000.0) == []


def test_failures_come_before_all_other_warnings():
    warnings = WarningHistory()
    failed, lost = Finding(55, FAILED, "p", "ValueError: x"), Finding(92, "lost peer", "p", "y")
    warnings.add([lost, failed], 0.0)
    assert [(row["kind"], row["serious"]) for row in warnings.rows(1.0)] == [(FAILED, True), ("lost peer", True)]
    warnings.add([lost], 2 * PRESENT)
    assert [row["kind"] for row in warnings.rows(2 * PRESENT)] == ["lost peer", FAILED]


# -- memory by holder ------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.text(max_size=3), st.integers(1, 10**12)), max_size=20),
    st.integers(0, 10**13), st.integers(1, 20),
)  # fmt: skip
def test_held_memory_adds_up(parts, total, most):
    rows = with_rest(parts, total, most)
    assert sum(nbytes for _, nbytes in rows) == max(total, sum(nbytes for _, nbytes in parts))
    assert rows[:most] == parts[:most] or rows[: len(parts)] == parts
    assert all(nbytes > 0 for _, nbytes in rows) and len(rows) <= most + 1


# -- the page's own arithmetic, in node ------------------------------------------------------------------------

PAGE = Path(access_control.__file__).parent / "page"


def in_node(folder, body):
    """Return the value of a JavaScript expression that uses the page's pure modules."""
    for name in ("axes", "format", "state"):
        (folder / f"{name}.mjs").write_text((PAGE / f"{name}.js").read_text())
    (folder / "run.mjs").write_text(
        "import * as axes from './axes.mjs'; import * as format from './format.mjs';\n"
        f"import * as state from './state.mjs';\nconsole.log(JSON.stringify({body}));"
    )
    command = ["node", str(folder / "run.mjs")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "TZ": "UTC"}
    )
    return json.loads(done.stdout)


needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


@needs_node
def test_axes_begin_at_zero_or_above_and_no_label_comes_twice(tmp_path):
    random = np.random.default_rng(0)
    values = [
        [0], [0, 0], [5], [1e-9], [0.99991, 0.99992], [1, 1 + 1e-12], [3e12, 3e12 + 7], [0, 1e-300], [1e300, 0],
    ]  # fmt: skip
    for _ in range(300):
        scale, offset = 10.0 ** random.integers(-12, 12), 10.0 ** random.integers(-3, 9)
        values.append((random.random(3) * scale + offset).tolist())
    report = in_node(tmp_path, f"""{json.dumps(values)}.flatMap((values) => {{
        const [low, high] = axes.ends(values);
        const rows = [["value", 1], ["count", 1], ["bytes", 1024], ["percent", 1], ["seconds", 1]];
        const marks = (name, base) => axes.marks(low, high, 4, format[name], base);
        return rows.map(([name, base]) => ({{low, high, values, name, marks: marks(name, base)}}));
    }})""")  # fmt: skip
    for each in report:
        texts, at = [text for _, text in each["marks"]], [tick for tick, _ in each["marks"]]
        assert 0 <= each["low"] <= min(each["values"]) and each["high"] >= max(each["values"]), each
        assert each["low"] < each["high"] and len(set(texts)) == len(texts) <= 10, each
        assert all(tick >= 0 and each["low"] - 1e-6 * each["high"] <= tick for tick in at), each
    narrow = [
        text
        for each in report
        if each["values"] == [0.99991, 0.99992] and each["name"] == "value"
        for _, text in each["marks"]
    ]
    assert "0.999915" in narrow
    assert in_node(tmp_path, "[axes.ends([-5]), axes.ends([-2, 4])[0]]") == [[-6, 0], -2]


@needs_node
def test_labels_below_an_axis_neither_repeat_nor_overlap(tmp_path):
    wide = "(text) => text.length * 6"
    report = in_node(tmp_path, f"""[
        axes.sides("now", "now", 300, {wide}), axes.sides("step 1", "step 900", 300, {wide}),
        axes.sides("a long one", "another long one", 120, {wide}),
    ]""")  # fmt: skip
    assert report == [[["now", False]], [["step 1", True], ["step 900", False]], [["another long one", False]]]


@needs_node
def test_times_of_the_day_have_sixty_seconds(tmp_path):
    report = in_node(
        tmp_path, "[axes.clock(59.9996, 0), axes.clock(59.96, 1), axes.clock(3661.25, 1), axes.clock(7, 0)]"
    )
    assert report == ["00:01:00", "00:01:00.0", "01:01:01.3", "00:00:07"]


@needs_node
def test_the_page_shows_groups_that_add_up(tmp_path):
    held = {"roles": [["weights", 4], ["other", 6]], "layers": [], "devices": {"gpu(0)": [["a", 1]]}}
    assert in_node(tmp_path, f"state.memoryGroups({json.dumps(held)})") == [
        {"title": "by role", "tone": "c0", "rows": held["roles"], "total": 10},
        {"title": "on gpu(0)", "tone": "c6", "rows": [["a", 1]], "total": 1},
    ]


# -- curves ----------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-100, 100), max_size=3000))
def test_a_curve_keeps_its_mean_and_its_end_however_long_it_is(values):
    curve = Curve()
    for value in values:
        curve.add(value)
    assert len(curve.points) < curves.MAX_POINTS and curve.count == len(values)
    whole = len(values) // curve.stride
    assert len(curve.points) == whole
    if whole:
        mean = sum(value for _, value in curve.points) / whole
        assert mean == pytest.approx(sum(values[: whole * curve.stride]) / (whole * curve.stride), abs=1e-6)
        assert curve.points[-1][0] == whole * curve.stride - 1


def test_logging_takes_numbers_alone_and_few_names(monkeypatch):
    monkeypatch.setattr(curves, "curves", {})
    for name, value in (("loss", "high"), (3, 1.0), ("loss", None)):
        with pytest.raises(TypeError, match="expected"):
            curves.log(name, value)
    for number in range(200):
        curves.log("steady", number, step=2 * number)
        curves.log(f"curve {number}", 1)
    assert len(curves.curves) == 32 and curves.curves["steady"].points[-1] == (398.0, 199.0)


# -- who may look ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("remote", "host", "status"),
    [
        ("127.0.0.1", "localhost:80", 200), ("::1", "[::1]:80", 200), ("127.0.0.1", "127.0.0.1", 200),
        ("127.0.0.1", "evil.example:80", 403), ("10.0.0.7", "localhost:80", 403), ("127.0.0.1", "", 403),
        ("127.0.0.1", "localhost.evil.example", 403), ("127.0.0.1", "127.0.0.1.evil.example:80", 403),
    ],
)  # fmt: skip
def test_without_a_secret_only_local_clients_have_access(remote, host, status):
    assert Guard().judge(remote, {"Host": host}, None).status == status


def test_another_site_can_link_but_not_request():
    guard, host = Guard(), {"Host": "localhost", "Sec-Fetch-Site": "cross-site"}
    for mode, status in (("no-cors", 403), ("navigate", 200)):
        headers = CIMultiDict({**host, "Sec-Fetch-Mode": mode})
        assert guard.judge("127.0.0.1", headers, None).status == status
    assert guard.judge("127.0.0.1", CIMultiDict(Host="localhost", Origin="https://evil.example"), None).status == 403


def test_the_secret_grants_access():
    guard, host = Guard(SECRET), {"Host": "machine:80"}
    assert guard.judge("10.0.0.7", host, None).status == 401
    assert guard.judge("10.0.0.7", host, "wrong").status == 403
    assert guard.judge("10.0.0.7", host, SECRET).status == 302
    assert guard.judge("10.0.0.7", {**host, "Authorization": f"Bearer {SECRET}"}, None).status == 200
    assert guard.judge("10.0.0.7", {**host, "Cookie": f"a=b; {COOKIE}={guard.cookie}"}, None).status == 200
    for cookie in (SECRET, Guard(SECRET + "2").cookie, ""):
        assert guard.judge("10.0.0.7", {**host, "Cookie": f"{COOKIE}={cookie}"}, None).status == 401
    assert SECRET not in guard.cookie


def test_a_secret_has_a_minimum_length_and_is_required_for_other_addresses():
    with pytest.raises(ValueError, match="expected at least 16"):
        Guard("short")
    for host in ("0.0.0.0", "10.0.0.1", "::", "machine"):
        with pytest.raises(InsecureAddress, match="requires a secret"):
            check_address(host, None)
        check_address(host, SECRET)
    check_address("localhost", None)


def test_layers_are_named_by_precision(monkeypatch):
    monkeypatch.setattr(memory_owners, "_ROWS", 10_000)  # graphs of earlier tests may exist
    net = mx.gluon.nn.Dense(3, in_units=4, prefix="of_reals_")
    other = mx.gluon.nn.Dense(3, in_units=4, prefix="of_bytes_")
    for each in (net, other):
        each.initialize()
    quantized = mx.contrib.quantization.quantize_net_v2(
        other, calib_mode="naive", calib_data=mx.io.NDArrayIter(mx.nd.ones((4, 4)), batch_size=4)
    )
    for each in (net, quantized):
        each.hybridize()
        each(mx.nd.ones((4, 4))).wait_to_read()
    rows_by_precision = {row["precision"]: row for row in layers()}
    assert "of_reals_fwd" in rows_by_precision["float32"]["names"]
    assert any("fully_connected" in name for name in rows_by_precision["int8"]["names"])
    assert rows_by_precision["int8"]["count"] >= 1
    del net, quantized, other, each
    gc.collect()
    assert "of_reals_fwd" not in {name for row in layers() for name in row["names"]}


def test_a_system_without_process_memory_statistics(monkeypatch, tmp_path):
    assert reader._resident() > 1e6
    for content in (None, "", "1", "some pages"):
        if content is not None:
            (tmp_path / "statm").write_text(content)
        monkeypatch.setattr(reader, "Path", lambda _: tmp_path / "statm")
        assert reader._resident() == 0


def test_each_operation_is_in_the_reading_after_its_end(monkeypatch):
    variable = mx.nd.ones(2)
    variable.wait_to_read()
    monkeypatch.setattr(engine.books, "journal", deque(maxlen=100))
    reading = reader.Reader(SimpleNamespace(slowest=lambda: 0.0))
    for count in (1, 3, 0, 2):
        for _ in range(count):
            mx.engine.push(lambda: None, writes=[variable], name="mine")
        variable.wait_to_read()
        ended = reading.read({}).ended  # short operations of one name are shown as one
        assert sum(each.number for each in ended) == count and {each.name for each in ended} <= {"mine"}


def test_modules_of_the_page_export_what_others_import():
    page = Path(dashboard.__file__).parent / "page"
    exported = {
        path.name: set(re.findall(r"^export (?:async )?(?:function|class|const) (\w+)", path.read_text(), re.M))
        for path in page.glob("*.js")
    }
    for path in page.glob("*.js"):
        for names, module in re.findall(r"^import \{ (.+?) \} from \"\./(.+?)\";", path.read_text(), re.M):
            assert set(names.split(", ")) <= exported[module], f"{path.name} imports {names} from {module}"
