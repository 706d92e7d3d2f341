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
    return json.loads(profiler.dumps(format="json"))["Time"].get("operator", {})


def test_a_trace_is_written(tmp_path):
    profiler.set_config(profile_all=True, aggregate_stats=True, filename="trace.json")
    profiler.set_state("run")
    work()
    profiler.dump()
    document = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in document if event["ph"] == "X"]
    assert sum(event["name"] == "dot" for event in spans) == 3
    assert all(event["dur"] > 0 and event["ts"] > 0 for event in spans)
    named = {event["tid"]: event["args"]["name"] for event in document if event["ph"] == "M"}
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
    assert table()["dot"]["Count"] == 2
    assert "times" not in engine.watches


def test_a_table_of_all_operations():
    profiler.set_state("run")
    work(5)
    rows = profiler.dumps(sort_by="count").splitlines()
    assert rows[0].split() == ["Name", "Count", "Total", "(ms)", "Min", "(ms)", "Max", "(ms)", "Avg", "(ms)"]
    actual = table()["dot"]
    assert actual["Count"] == 5 and actual["Min"] <= actual["Avg"] <= actual["Max"] <= actual["Total"]
    profiler.dumps(reset=True)
    assert table() == {}


def test_results_and_errors_are_the_same_without_it():
    profiler.set_state("run")
    assert mx.nd.dot(mx.nd.ones((2, 3)), mx.nd.ones((3, 2))).asnumpy().tolist() == [[3, 3], [3, 3]]

    def fails():
        raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        mx.engine.push(fails, device=mx.cpu()).wait()
    assert table()["dot"]["Count"] == 1


def test_a_program_that_ends_leaves_its_trace(tmp_path):
    script = "import flowmx as mx; mx.profiler.set_state('run'); a = mx.nd.ones((2, 2)); mx.nd.dot(a, a)"
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=60)
    document = json.loads((tmp_path / "profile.json").read_text())["traceEvents"]
    assert any(event["name"] == "dot" for event in document)


async def coroutine():
    return 5


def test_coroutines_are_timed_too():
    profiler.set_state("run")
    assert mx.engine.push(coroutine).wait() == 5
    assert table()["coroutine"]["Count"] == 1


def test_it_works_with_the_nan_watch():
    profiler.set_state("run")
    with mx.anomaly.stop_at_nan():
        work(1)
    work(1)
    profiler.set_state("stop")
    assert table()["dot"]["Count"] == 2
    with pytest.raises(mx.MXNetError), mx.anomaly.stop_at_nan():
        (mx.nd.array([-1.0]).log() * 2).asnumpy()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: profiler.set_state("walk"), ValueError, "state is 'walk'"),
        (lambda: profiler.set_state("run", "server"), ValueError, "servers are not recorded"),
        (lambda: profiler.set_config(file="a"), TypeError, "unknown argument 'file'"),
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


class Doubling(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 2)
        mx.nd.zeros(3)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


@mx.operator.register("doubling_that_is_profiled")
class DoublingProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Doubling()


@pytest.mark.parametrize("is_bound", [False, True])
def test_the_json_has_mxnets_parts_and_what_users_operators_do(is_bound):
    profiler.set_config(profile_all=True)
    profiler.set_state("run")
    with profiler.Domain("mine").new_task("epoch"):
        x = mx.nd.ones(3)
        if is_bound:
            net = mx.sym.Custom(mx.sym.Variable("x"), op_type="doubling_that_is_profiled")
            executor = net.bind(mx.cpu(), {"x": x}, {"x": mx.nd.zeros(3)})
            executor.forward_backward()
        else:
            x.attach_grad()
            with mx.autograd.record():
                y = mx.nd.Custom(x, op_type="doubling_that_is_profiled")
            y.backward()
        mx.nd.waitall()
    profiler.set_state("stop")
    document = json.loads(profiler.dumps(format="json", sort_by="avg", ascending=True))
    assert document["Unit"] == {"Time": "ms", "Memory": "kB"}
    assert document["Time"]["mine"]["epoch"]["Count"] == 1
    assert {"Count", "Min", "Max", "Avg"} == set(document["Memory"]["Device Storage"]["Memory: cpu"])
    rows = document["Time"]["Custom Operator"]
    for name in ("pure_python", "_mul_scalar"):
        assert rows[f"doubling_that_is_profiled::{name}"]["Count"] == 1
        assert rows[f"_backward_doubling_that_is_profiled::{name}"]["Count"] == 1
    assert rows["doubling_that_is_profiled::_zeros"]["Count"] == 1
    assert [row["Avg"] for row in rows.values()] == sorted(row["Avg"] for row in rows.values())
