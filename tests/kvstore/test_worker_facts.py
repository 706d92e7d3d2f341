"""Agreement at the start of a job on versions, seeds, shapes and settings; errors name nodes and values."""

import itertools
import re
from contextlib import suppress

import pytest

import flowmx as mx
from flowmx import settings
from flowmx.comm.errors import Refused
from flowmx.devices import generator
from flowmx.errors import KVStoreError
from flowmx.kvstore.server import fact_check as server
from flowmx.kvstore.worker import worker_facts as facts
from tests.jobs import job

WORKER = r"worker \d on \S+"
SEEDS = re.compile(rf"the seed of mx.random is [78] on {WORKER}, and [78] on {WORKER}")


@pytest.fixture
def differing(monkeypatch):
    """Make the second worker that opens its store report other facts."""

    def change(item, one, other, hint=False):
        real, values = facts.process_facts, itertools.chain([one], itertools.repeat(other))

        def process_facts():
            result, hints = real()
            (hints if hint else result)[item] = next(values)
            return result, hints

        monkeypatch.setattr(facts, "process_facts", process_facts)

    return change


def create_both(running):
    begun = [running.begin(lambda kv: kv.rank, rank=rank) for rank in range(2)]
    return [item.exception(60) for item in begun]


@pytest.mark.parametrize(
    ("item", "one", "other"),
    [
        ("the version of flowmx", "1.0", "1.1"),
        ("the seed of mx.random", "7", "8"),
        ("FLOWMX_KVSTORE_BIGARRAY_BOUND", "1000000", "1000"),
    ],
)
def test_a_difference_is_named_with_its_nodes_and_both_values(differing, item, one, other):
    actual = facts.process_facts()[0].get(item)
    differing(item, one, other)
    with job() as running:
        errors = create_both(running)
    messages = [str(error) for error in errors if isinstance(error, KVStoreError)]
    expected = rf"{item} is (\S+) on (\w+ \d on \S+), and (\S+) on (\w+ \d on \S+)"
    result = [re.search(expected, text) for text in messages]
    assert messages and all(result)
    for match in result:
        here, who, there, whom = match.groups()
        assert who != whom and here != there and {here, there} <= {one, other, actual}


def test_the_other_workers_get_the_reason_of_the_failure(differing):
    differing("the seed of mx.random", "7", "8")
    with job() as running:
        begun = [running.begin(lambda kv: mx.run(kv.barrier()), rank=rank) for rank in range(2)]
        errors = [item.exception(60) for item in begun]
    assert all(SEEDS.search(str(error)) for error in errors)


def test_differences_may_be_warnings(differing, caplog):
    differing("the seed of mx.random", "7", "8")
    with settings.override(kvstore_agreement="warn"), job() as running:
        assert create_both(running) == [None, None]
    assert SEEDS.search(caplog.text)


def test_other_versions_of_python_are_a_warning(differing, caplog):
    differing("the version of Python", "3.11.4", "3.12.1", hint=True)
    with job() as running:
        assert create_both(running) == [None, None]
    assert re.search(rf"the version of Python is 3\.1\S+ on {WORKER}, and 3\.1\S+ on {WORKER}", caplog.text)


@pytest.mark.parametrize(
    ("shapes", "dtypes", "values"),
    [
        ([(2, 3), (2, 4)], ["float32"] * 2, (r"float32 \(2, 3\)", r"float32 \(2, 4\)")),
        ([(2, 3)] * 2, ["float32", "float16"], (r"float32 \(2, 3\)", r"float16 \(2, 3\)")),
    ],
)
def test_keys_have_one_shape_and_dtype(shapes, dtypes, values):
    def work(kv):
        kv.init("same", mx.nd.ones((1,)))
        kv.init("w", mx.nd.ones(shapes[kv.rank], dtype=dtypes[kv.rank]))
        out = mx.nd.zeros(shapes[kv.rank], dtype=dtypes[kv.rank])
        kv.push("w", out)
        kv.pull("w", out=out)
        out.wait_to_read()

    with job() as running:
        begun = [running.begin(work, rank=rank) for rank in range(2)]
        errors = [str(item.exception(60)) for item in begun]
        with suppress(mx.MXNetError):  # errors of operations that were not awaited
            mx.nd.waitall()
    expected = rf"the value of key 'w' is (.*) on {WORKER}, and (.*) on {WORKER}"
    for error in errors:
        result = re.search(expected.replace("(.*)", "(" + "|".join(values) + ")"), error)
        assert result and result[1] != result[2], error
    assert not any("'same'" in error for error in errors)


def test_agreeing_workers_pass():
    def work(kv):
        kv.init("w", mx.nd.ones((2,)))
        out = mx.nd.zeros((2,))
        kv.pushpull("w", mx.nd.ones((2,)), out=out)
        return out.asnumpy().tolist()

    mx.random.seed(5)
    with job() as running:
        assert running.each(work) == [[2, 2]] * 2


def test_a_process_reports_its_seed_if_set(monkeypatch):
    monkeypatch.setattr(generator, "_new_seed", None)
    assert "the seed of mx.random" not in facts.process_facts()[0]
    with settings.override(seed=3):
        assert facts.process_facts()[0]["the seed of mx.random"] == "3"
        mx.random.seed(4)
        assert facts.process_facts()[0]["the seed of mx.random"] == "4"


# -- what a server compares --------------------------------------------------------------------------------------


def compared(*names):
    result = server.Facts()
    result.set_nodes({name: f"worker {name}" for name in names})
    return result


def test_nodes_that_left_are_not_compared():
    compared_facts = compared("a", "b")
    compared_facts.add_equal("a", {"seed": "1"})
    with pytest.raises(Refused, match="seed is 2 on worker b, and 1 on worker a"):
        compared_facts.add_equal("b", {"seed": "2"})
    compared_facts.set_nodes({"b": "worker b", "c": "worker c"})
    compared_facts.add_equal("b", {"seed": "2"})
    assert compared_facts.differences("c", {"seed": "1", "other": "1"}) == ["seed is 1 on worker c, and 2 on worker b"]


def test_nodes_may_add_repeat_and_change_facts():
    compared_facts = compared("a", "b")
    compared_facts.add_equal("a", {"x": "1"})
    compared_facts.add_equal("a", {"x": "1", "y": "2"})
    compared_facts.add_equal("a", {"x": "3"})
    with pytest.raises(Refused, match="y is 3 on worker b"):
        compared_facts.add_equal("b", {"x": "3", "y": "3"})


def test_a_refusal_is_bounded_in_length():
    compared_facts = compared("a", "b")
    compared_facts.add_equal("a", {f"k{i}": "1" for i in range(100)})
    with pytest.raises(Refused, match=r"; and 95 more$"):
        compared_facts.add_equal("b", {f"k{i}": "2" for i in range(100)})


def test_the_number_of_facts_is_bounded(monkeypatch):
    monkeypatch.setattr(server, "MAX_ITEMS", 10)
    compared_facts = compared("a")
    compared_facts.add_equal("a", {f"k{i}": "1" for i in range(10)})
    with pytest.raises(Refused, match="more than 10 facts"):
        compared_facts.add_equal("a", {"one more": "1"})
    with pytest.raises(ValueError, match="at most 10 strings"):
        server.read_facts({"facts": {f"k{i}": "1" for i in range(11)}}, "facts")


@pytest.mark.parametrize("facts_field", [{"seed": 1}, {"seed": "1" * 1001}, {"s" * 2001: "1"}])
def test_invalid_facts_are_refused(facts_field):
    with pytest.raises(ValueError, match="facts must be"):
        server.read_facts({"facts": facts_field}, "facts")
    assert server.read_facts({}, "facts") == {}
