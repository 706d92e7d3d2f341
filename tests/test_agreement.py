"""At the start of a job its nodes agree on versions, seeds, shapes and settings; who differs, and in what, is named."""

import itertools
import re
from contextlib import suppress

import pytest

import flowmx as mx
from flowmx import settings
from flowmx.comm.errors import Refused
from flowmx.devices import generator
from flowmx.errors import KVStoreError
from flowmx.kvstore.server import facts as server
from flowmx.kvstore.worker import facts
from tests.jobs import job

WORKER = r"worker \d on \S+"
SEEDS = re.compile(rf"the seed of mx.random is [78] on {WORKER}, and [78] on {WORKER}")


@pytest.fixture
def differing(monkeypatch):
    """Lets the second worker that opens its store say something else of itself."""

    def change(item, one, other, hint=False):
        real, values = facts.of_process, itertools.chain([one], itertools.repeat(other))

        def of_process():
            said, hints = real()
            (hints if hint else said)[item] = next(values)
            return said, hints

        monkeypatch.setattr(facts, "of_process", of_process)

    return change


def create_both(running):
    begun = [running.begin(lambda kv: kv.rank, rank=rank) for rank in range(2)]
    return [each.exception(60) for each in begun]


@pytest.mark.parametrize(
    ("item", "one", "other"),
    [
        ("the version of flowmx", "1.0", "1.1"),
        ("the seed of mx.random", "7", "8"),
        ("FLOWMX_KVSTORE_BIGARRAY_BOUND", "1000000", "1000"),
    ],
)
def test_what_differs_is_named_with_its_nodes_and_both_values(differing, item, one, other):
    actual = facts.of_process()[0].get(item)
    differing(item, one, other)
    with job() as running:
        errors = create_both(running)
    messages = [str(error) for error in errors if isinstance(error, KVStoreError)]
    expected = rf"{item} is (\S+) on (\w+ \d on \S+), and (\S+) on (\w+ \d on \S+)"
    found = [re.search(expected, text) for text in messages]
    assert messages and all(found)
    for match in found:
        here, who, there, whom = match.groups()
        assert who != whom and here != there and {here, there} <= {one, other, actual}


def test_the_other_workers_are_told_why_the_job_failed(differing):
    differing("the seed of mx.random", "7", "8")
    with job() as running:
        begun = [running.begin(lambda kv: mx.run(kv.barrier()), rank=rank) for rank in range(2)]
        errors = [each.exception(60) for each in begun]
    assert all(SEEDS.search(str(error)) for error in errors)


def test_it_may_be_a_warning(differing, caplog):
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
        errors = [str(each.exception(60)) for each in begun]
        with suppress(mx.MXNetError):  # what operations found that nobody waited for
            mx.nd.waitall()
    expected = rf"the value of key 'w' is (.*) on {WORKER}, and (.*) on {WORKER}"
    for error in errors:
        found = re.search(expected.replace("(.*)", "(" + "|".join(values) + ")"), error)
        assert found and found[1] != found[2], error
    assert not any("'same'" in error for error in errors)


def test_workers_that_agree_are_let_alone():
    def work(kv):
        kv.init("w", mx.nd.ones((2,)))
        out = mx.nd.zeros((2,))
        kv.pushpull("w", mx.nd.ones((2,)), out=out)
        return out.asnumpy().tolist()

    mx.random.seed(5)
    with job() as running:
        assert running.each(work) == [[2, 2]] * 2


def test_a_process_says_its_seed_if_there_is_one(monkeypatch):
    monkeypatch.setattr(generator, "_new_seed", None)
    assert "the seed of mx.random" not in facts.of_process()[0]
    with settings.override(seed=3):
        assert facts.of_process()[0]["the seed of mx.random"] == "3"
        mx.random.seed(4)
        assert facts.of_process()[0]["the seed of mx.random"] == "4"


# -- what a server compares --------------------------------------------------------------------------------------


def compared(*names):
    found = server.Facts()
    found.know({name: f"worker {name}" for name in names})
    return found


def test_who_has_left_is_not_compared_with():
    known = compared("a", "b")
    known.say("a", {"seed": "1"})
    with pytest.raises(Refused, match="seed is 2 on worker b, and 1 on worker a"):
        known.say("b", {"seed": "2"})
    known.know({"b": "worker b", "c": "worker c"})
    known.say("b", {"seed": "2"})
    assert known.differences("c", {"seed": "1", "other": "1"}) == ["seed is 1 on worker c, and 2 on worker b"]


def test_nodes_may_say_more_and_again_and_otherwise():
    known = compared("a", "b")
    known.say("a", {"x": "1"})
    known.say("a", {"x": "1", "y": "2"})
    known.say("a", {"x": "3"})
    with pytest.raises(Refused, match="y is 3 on worker b"):
        known.say("b", {"x": "3", "y": "3"})


def test_a_refusal_is_no_longer_than_people_read():
    known = compared("a", "b")
    known.say("a", {f"k{i}": "1" for i in range(100)})
    with pytest.raises(Refused, match=r"; and 95 more$"):
        known.say("b", {f"k{i}": "2" for i in range(100)})


def test_what_is_kept_has_a_limit(monkeypatch):
    monkeypatch.setattr(server, "MOST_ITEMS", 10)
    known = compared("a")
    known.say("a", {f"k{i}": "1" for i in range(10)})
    with pytest.raises(Refused, match="more than 10 things"):
        known.say("a", {"one more": "1"})
    with pytest.raises(ValueError, match="at most 10 texts"):
        server.facts_of({"facts": {f"k{i}": "1" for i in range(11)}}, "facts")


@pytest.mark.parametrize("given", [{"seed": 1}, {"seed": "1" * 1001}, {"s" * 2001: "1"}])
def test_what_is_no_fact_is_refused(given):
    with pytest.raises(ValueError, match="facts must be"):
        server.facts_of({"facts": given}, "facts")
    assert server.facts_of({}, "facts") == {}
