"""``mx.profiler`` records the operations that ran."""

import json
import subprocess
import sys

import pytest

import flowmx as mx
from flowmx import profiler
from flowmx.engine.runtime import engine

pytestmark = pytest.mark.usefixtures("profiler_afresh")


def work(times=3):
    a = mx.nd.ones((50, 50))
    for _ in range(times):
        a = mx.nd.dot(a, a) / 50
    a.wait_to_read()


def table():
    return json.loads(profiler.dumps(format="json"))


def test_a_trace_is_written(tmp_path):
    profiler.set_config(profile_all=True, aggregate_stats=True, filename="trace.json")
    profiler.set_state("run")
    work()
    profiler.dump()
    found = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in found if event["ph"] == "X"]
    assert sum(event["name"] == "dot" for event in spans) == 3
    assert all(event["dur"] > 0 and event["ts"] > 0 for event in spans)
    named = {event["tid"]: event["args"]["name"] for event in found if event["ph"] == "M"}
    assert all(named[event["tid"]].startswith("cpu(0) · ") for event in spans)


def test_only_what_runs_in_between_is_recorded():
    work()
    profiler.set_state("run")
    work(1)
    profiler.pause()
    work()
    profiler.resume()
    work(1)
    profiler.set_state("stop")
    work()
    assert table()["dot"]["count"] == 2
    assert "times" not in engine.watches


def test_a_table_of_all_operations():
    profiler.set_state("run")
    work(5)
    rows = profiler.dumps(sort_by="count").splitlines()
    assert rows[0].split() == ["Name", "Count", "Total", "(ms)", "Min", "(ms)", "Max", "(ms)", "Avg", "(ms)"]
    found = table()["dot"]
    assert found["count"] == 5 and found["min"] <= found["avg"] <= found["max"] <= found["total"]
    profiler.dumps(reset=True)
    assert table() == {}


def test_results_and_errors_are_what_they_are_without_it():
    profiler.set_state("run")
    assert mx.nd.dot(mx.nd.ones((2, 3)), mx.nd.ones((3, 2))).asnumpy().tolist() == [[3, 3], [3, 3]]

    def fails():
        raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        mx.engine.push(fails, device=mx.cpu()).wait()
    assert table()["dot"]["count"] == 1


def test_a_program_that_ends_leaves_its_trace(tmp_path):
    script = "import flowmx as mx; mx.profiler.set_state('run'); a = mx.nd.ones((2, 2)); mx.nd.dot(a, a)"
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=60)
    found = json.loads((tmp_path / "profile.json").read_text())["traceEvents"]
    assert any(event["name"] == "dot" for event in found)


async def coroutine():
    return 5


def test_coroutines_are_timed_too():
    profiler.set_state("run")
    assert mx.engine.push(coroutine).wait() == 5
    assert table()["coroutine"]["count"] == 1


def test_it_runs_beside_a_watch_for_nan():
    profiler.set_state("run")
    with mx.safety.stop_at_nan():
        work(1)
    work(1)
    profiler.set_state("stop")
    assert table()["dot"]["count"] == 2
    with pytest.raises(mx.MXNetError), mx.safety.stop_at_nan():
        (mx.nd.array([-1.0]).log() * 2).asnumpy()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: profiler.set_state("walk"), ValueError, "state is 'walk'"),
        (lambda: profiler.set_state("run", "server"), ValueError, "servers are not recorded"),
        (lambda: profiler.set_config(file="a"), TypeError, "no argument 'file'"),
        (lambda: profiler.dumps(format="xml"), ValueError, "format is 'xml'"),
        (lambda: profiler.dumps(sort_by="name"), ValueError, "sort_by is 'name'"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_old_names(tmp_path):
    with pytest.warns(DeprecationWarning, match="is deprecated"):
        profiler.profiler_set_config(filename="old.json")
    with pytest.warns(DeprecationWarning, match="is deprecated"):
        profiler.profiler_set_state("run")
    work(1)
    with pytest.warns(DeprecationWarning, match="is deprecated"):
        profiler.dump_profile()
    assert (tmp_path / "old.json").exists()
