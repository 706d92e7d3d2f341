"""The workers' side of distributed stores, piece by piece: what is sent when, to whom, and again."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowmx as mx
from flowmx.comm.endings import NodeGone
from flowmx.comm.errors import Busy, PeerGone, Refused
from flowmx.comm.frames import Message, Tensor
from flowmx.comm.view import Member, View
from flowmx.errors import KVStoreError
from flowmx.kvstore.shards import Layout, Shard
from flowmx.kvstore.worker import states
from flowmx.kvstore.worker.groups import Group, Groups, runs
from flowmx.kvstore.worker.keys import KeyState
from flowmx.kvstore.worker.outbox import MOST, Exchange, Item, Outbox
from flowmx.kvstore.worker.sender import UPLOADS, Sender
from flowmx.kvstore.worker.servers import Servers, primary
from flowmx.kvstore.worker.session import Session
from flowmx.kvstore.worker.store import _mode
from flowmx.observability.flight import messages
from flowmx.optimizer import states as states_file
from flowmx.settings import SettingError


def item(key, operation="push", number=1, priority=0, nbytes=4, exchange=None, home=0):
    array = np.zeros(nbytes, np.uint8)
    shard = Shard(key, 0, home, 0, nbytes, nbytes)
    tensor = Tensor.of(array) if operation in ("push", "pushpull") else None
    target = array if operation in ("pull", "pushpull") else None
    return Item(operation, shard, number, priority, [exchange or Exchange(1)], tensor, None, target)


# -- the outbox ------------------------------------------------------------------------------------------


def test_the_most_urgent_go_first_and_equals_in_their_order():
    box = Outbox(0)
    for key, priority in (("a", 0), ("b", 2), ("c", 0), ("d", 2)):
        box.put(item(key, priority=priority))
    assert [box.take()[0].shard.key for _ in range(4)] == ["b", "d", "a", "c"]
    assert box.take() == []


def test_small_items_travel_together_up_to_a_limit():
    box = Outbox(100)
    for key in "abcde":
        box.put(item(key, nbytes=40))
    assert [len(box.take()) for _ in range(3)] == [2, 2, 1]


def test_a_big_item_goes_alone():
    box = Outbox(100)
    box.put(item("big", nbytes=1000))
    box.put(item("small"))
    assert [[each.shard.key for each in box.take()] for _ in range(2)] == [["big"], ["small"]]


def test_a_request_carries_one_operation_and_no_more_parts_than_it_may():
    box = Outbox(1 << 30)
    for number in range(MOST + 1):
        box.put(item(number))
    box.put(item("last", "pull"))
    assert [len(box.take()) for _ in range(3)] == [MOST, 1, 1]


def test_a_pull_goes_with_the_unsent_push_that_it_wants():
    box = Outbox(100)
    pushed, pulled = Exchange(1), Exchange(1)
    box.put(item("a", number=3, exchange=pushed))
    box.put(item("a", "pull", number=3, exchange=pulled))
    (found,) = box.take()
    assert found.operation == "pushpull"
    assert found.exchanges == [pushed, pulled]
    assert found.tensor is not None and found.target is not None


def test_a_pull_of_another_push_or_of_a_sent_one_goes_by_itself():
    box = Outbox(100)
    box.put(item("a", number=3))
    box.put(item("a", "pull", number=2))
    assert [box.take()[0].operation for _ in range(2)] == ["push", "pull"]
    box.put(item("a", "pull", number=3))
    assert box.take()[0].operation == "pull"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2), st.integers(1, 60), st.booleans()), max_size=40))
def test_everything_that_is_put_is_taken_once_whatever_it_is(puts):
    box, exchanges = Outbox(100), []
    for key, priority, nbytes, pulls in puts:
        exchanges.append(Exchange(1))
        box.put(item(key, "pull" if pulls else "push", 1, priority, nbytes, exchanges[-1]))
    taken = []
    while bundle := box.take():
        assert len({each.operation for each in bundle}) == 1
        assert len(bundle) == 1 or sum(each.nbytes for each in bundle) <= 100
        taken += [exchange for each in bundle for exchange in each.exchanges]
    assert sorted(map(id, taken)) == sorted(map(id, exchanges))


# -- what workers do together ----------------------------------------------------------------------------


class Together(Session):
    """A session whose barriers and calls are noted; the barriers of the worker's job end at once."""

    def __init__(self, rank, past=()):
        self.did = []
        self.servers, self._turn = 2, 0
        self.node = SimpleNamespace(
            id="me", rank=rank, incarnation=5, barrier=self._barrier, is_past=lambda name: name in past,
            view=SimpleNamespace(find=lambda node: None),
        )  # fmt: skip
        self._servers = SimpleNamespace(call=self._call)

    async def _barrier(self, name, meet=False):
        self.did.append((name, meet))
        return 7

    async def _call(self, home, operation, header):
        self.did.append((operation, home, header["order"]))

    async def _administer(self, operation, header, entries, tensors):
        self.did.append((operation, header.get("exists"), tensors))
        return {}


async def test_behind_a_barrier_keys_are_looked_up_again_before_anyone_goes_on():
    session = Together(1)

    async def then():
        session.did.append("then")

    await session.barrier([], then)
    rest, meeting, again, *after = session.did
    assert rest[0] == "rest"
    assert meeting == ("kvstore", True)
    assert again == ("init", True, {}), "keys exist already, and keep their values"
    assert after == ["then", ("kvstore 7", True)]


@pytest.mark.parametrize(
    ("rank", "past", "first"),
    [(0, (), [[4, 5, 1]] * 2), (1, (), []), (0, ("optimizer 4",), [])],
    ids=["the first", "another", "the first, started again"],
)
async def test_an_optimizer_is_given_by_one_and_by_all_to_servers_that_lost_it(rank, past, first):
    session = Together(rank, past)
    await session.configure_together({"name": "sgd"}, 4)
    at = session.did.index(("optimizer 4", False))
    assert [order for _, _, order in session.did[:at]] == first
    assert session.did[at + 1 :] == [("set_optimizer", home, [4, 0, 0]) for home in range(2)], "below any other's turn"


# -- exchanges -------------------------------------------------------------------------------------------


def test_an_exchange_is_over_with_its_last_part_and_tells_once():
    called = []
    exchange = Exchange(2)
    exchange.whenever(called.append)
    exchange.answered()
    assert not exchange.ended
    exchange.answered()
    exchange.end(ValueError("too late"))
    assert called == [exchange]
    assert exchange.error is None


def test_an_exchange_without_parts_is_over_at_once():
    assert Exchange(0).ended


def test_what_finishing_raises_is_the_exchange_s_error():
    exchange = Exchange(1, lambda: 1 / 0)
    exchange.answered()
    assert isinstance(exchange.error, ZeroDivisionError)


# -- the servers -----------------------------------------------------------------------------------------


def server(rank, incarnation=1, state="alive"):
    return Member(f"s{rank}", "server", rank, f"at {rank}.{incarnation}", incarnation=incarnation, state=state)


def view(epoch, *members, gone=()):
    return View("job", 1, epoch, "running", tuple(members), tuple(gone))


NEVER = None


class Lines:
    """Lines to servers by address; each call takes the next of the address's answers, or waits."""

    def __init__(self):
        self.calls = []
        self.answers = {}
        self.closed = []
        self.called = asyncio.Event()
        self.local = False

    def connect(self, address):
        return Line(self, address)


class Line:
    def __init__(self, lines, address):
        self.lines, self.address = lines, address

    async def call(self, operation, header, tensors=(), into=None, timeout=None, sent=lambda: None):
        self.lines.calls.append((self.address, operation, header))
        self.lines.called.set()
        answers = self.lines.answers.get(self.address, [])
        if not answers or answers[0] is NEVER:
            del answers[:1]
            async with asyncio.timeout(timeout):
                await asyncio.Event().wait()
        answer = answers.pop(0)
        sent()
        if isinstance(answer, Exception):
            raise answer
        return Message(answer, [])

    async def close(self):
        self.lines.closed.append(self.address)

    @property
    def is_local(self):
        return self.lines.local


@pytest.fixture
def lines():
    return Lines()


def servers(lines, count=2, patience=5.0, timeout=5.0):
    return Servers(count, lines.connect, {"node": "w", "incarnation": 7}, patience, timeout)


@pytest.mark.parametrize(
    ("alive", "home", "rank"), [((0, 1, 2), 1, 1), ((0, 2), 1, 2), ((0,), 1, 0), ((1,), 2, 1), ((), 0, None)]
)
def test_a_home_is_served_by_the_next_server_of_the_ring_that_is_alive(alive, home, rank):
    found = primary(view(1, *(server(each, state="alive" if each in alive else "gone") for each in range(3))), home, 3)
    assert (found and found.rank) == rank


async def test_calls_name_their_sender(lines):
    calls = servers(lines)
    calls.know(view(1, server(0), server(1)))
    lines.answers["at 1.1"] = [{"ok": 1}]
    assert (await calls.call(1, "stats", {"x": 2})).header == {"ok": 1}
    assert lines.calls == [("at 1.1", "stats", {"node": "w", "incarnation": 7, "x": 2})]
    await calls.close()
    assert lines.closed == ["at 1.1"]


@pytest.mark.parametrize(
    "trouble", [PeerGone("cut"), Refused("not me", "moved"), Busy("full"), TimeoutError("long")], ids=repr
)
async def test_what_may_get_better_is_tried_again(lines, trouble):
    calls = servers(lines)
    calls.know(view(1, server(0)))
    probed = [{}] if isinstance(trouble, PeerGone | TimeoutError) else []
    lines.answers["at 0.1"] = [trouble, *probed, {"ok": 1}]
    assert (await calls.call(0, "push", {})).header == {"ok": 1}


async def test_a_call_without_an_answer_is_made_again_on_a_new_line(lines):
    calls = servers(lines, timeout=0.02)
    calls.know(view(1, server(0)))
    lines.answers["at 0.1"] = [NEVER, {}, {"ok": 1}]
    assert (await calls.call(0, "push", {})).header == {"ok": 1}
    assert [operation for _, operation, _ in lines.calls] == ["push", "local", "push"]
    await calls.close()
    assert lines.closed == ["at 0.1", "at 0.1"]


async def test_a_server_that_is_out_of_reach_is_given_up_by_name(lines):
    calls = servers(lines, patience=0.05, timeout=0.01)
    calls.know(view(1, server(0)))
    with pytest.raises(KVStoreError, match=r"push: server 0 at at 0.1 has not been reached for 0\.\d s"):
        await calls.call(0, "push", {})


async def test_one_that_only_takes_long_is_not(lines):
    calls = servers(lines, patience=0.0, timeout=0.01)
    calls.know(view(1, server(0)))
    lines.answers["at 0.1"] = [TimeoutError("long"), {}, PeerGone("cut"), {}, TimeoutError("long"), {}, {"ok": 1}]
    assert (await calls.call(0, "push", {})).header == {"ok": 1}


async def test_a_refusal_is_not(lines):
    calls = servers(lines)
    calls.know(view(1, server(0)))
    lines.answers["at 0.1"] = [Refused("no such key", "not_initialized"), {}]
    with pytest.raises(Refused, match="no such key"):
        await calls.call(0, "push", {})


async def test_a_call_of_a_server_that_is_replaced_is_made_to_its_successor(lines):
    calls = servers(lines)
    calls.know(view(1, server(0), server(1)))
    call = asyncio.create_task(calls.call(0, "push", {}))
    await lines.called.wait()  # server 0 never answers
    lines.answers["at 1.1"] = [{"by": 1}]
    calls.know(view(2, server(0, state="gone"), server(1)))
    assert (await call).header == {"by": 1}
    await calls.close()
    assert "at 0.1" in lines.closed


async def test_a_server_that_was_started_anew_is_called_anew(lines):
    calls = servers(lines, 1)
    calls.know(view(1, server(0)))
    call = asyncio.create_task(calls.call(0, "push", {}))
    await lines.called.wait()
    lines.answers["at 0.2"] = [{"life": 2}]
    calls.know(view(2, server(0, 2)))
    assert (await call).header == {"life": 2}


async def probing(lines):
    """A call whose connection broke, while it asks a server that says nothing whether it is there."""
    calls = servers(lines, timeout=3600)
    calls.know(view(1, server(0), server(1)))
    lines.answers["at 0.1"] = [PeerGone("cut")]
    call = asyncio.create_task(calls.call(0, "push", {}))
    while len(lines.calls) < 2:
        await asyncio.sleep(0)
    assert lines.calls[-1][1] == "local"
    return calls, call


async def test_the_end_of_the_job_ends_a_question_that_nobody_answers(lines):
    calls, call = await probing(lines)
    calls.fail(NodeGone("the job has failed: server 0 is gone"))
    with pytest.raises(NodeGone, match="server 0 is gone"):
        await call


async def test_a_successor_is_called_while_the_one_before_does_not_answer_a_question(lines):
    calls, call = await probing(lines)
    lines.answers["at 1.1"] = [{"by": 1}]
    calls.know(view(2, server(0, state="gone"), server(1)))
    assert (await call).header == {"by": 1}


async def test_a_call_that_is_cancelled_while_it_asks_stays_so(lines):
    _, call = await probing(lines)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_home_that_stays_without_servers_is_given_up_by_name(lines):
    calls = servers(lines, 1, patience=0.01)
    lost = Member("s0", "server", 0, host="here", state="gone", why="killed")
    calls.know(view(2, lost, gone=[lost]))
    with pytest.raises(KVStoreError, match=r"home 0 for 0.01 s.*server 0 on here .* is gone: killed"):
        await calls.call(0, "pull", {})


async def test_the_end_of_the_job_ends_calls_that_wait_and_those_to_come(lines):
    calls = servers(lines)
    calls.know(view(1, server(0), server(1)))
    call = asyncio.create_task(calls.call(0, "push", {}))
    await lines.called.wait()
    calls.fail(NodeGone("worker 1 is gone"))
    for awaited in (call, calls.call(1, "push", {})):
        with pytest.raises(NodeGone, match="worker 1 is gone"):
            await awaited


async def test_a_call_that_is_cancelled_stays_so(lines):
    calls = servers(lines)
    calls.know(view(1, server(0)))
    call = asyncio.create_task(calls.call(0, "push", {}))
    await lines.called.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not calls._calls


# -- the sender ------------------------------------------------------------------------------------------


async def settled():
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_is_put_in_one_turn_goes_in_one_request_and_acknowledges(lines):
    calls, acknowledged = servers(lines), {("a", 0): 4}
    calls.know(view(1, server(0)))
    lines.answers["at 0.1"] = [{"numbers": [5, 1]}]
    sender = Sender(calls, acknowledged)
    items = [item("a", number=5), item("b")]
    sender.put(items[:1])
    sender.put(items[1:])
    await settled()
    (call,) = lines.calls
    assert call[2]["parts"] == [["a", 0, 0, 5, 4], ["b", 0, 0, 1, 0]]
    assert acknowledged == {("a", 0): 5, ("b", 0): 1}
    assert all(each.exchanges[0].ended for each in items)


async def test_requests_that_wait_for_answers_hold_no_others_up(lines):
    calls = servers(lines)
    calls.know(view(1, server(0)))

    async def never(self, operation, header, tensors=(), into=None, timeout=None, sent=lambda: None):
        lines.calls.append(header["parts"][0][0])
        sent()
        await asyncio.Event().wait()

    lines.connect = lambda address: type("Silent", (Line,), {"call": never})(lines, address)
    calls = servers(lines)
    calls.know(view(1, server(0)))
    sender = Sender(calls, {})
    big = 1 << 23
    sender.put([item(key, nbytes=big) for key in range(2 * UPLOADS)])
    await settled()
    assert lines.calls == list(range(2 * UPLOADS))
    assert [each.shard.key for each in sender.under_way()] == list(range(2 * UPLOADS))
    await sender.close()


async def test_no_more_uploads_at_a_time_than_there_may_be_and_then_the_most_urgent(lines):
    calls = servers(lines)
    calls.know(view(1, server(0)))
    sender = Sender(calls, {})
    big = 1 << 23
    sender.put([item(key, nbytes=big) for key in "abc"])
    await settled()
    assert [header["parts"][0][0] for _, _, header in lines.calls] == list("ab"[:UPLOADS])
    sender.put([item("urgent", nbytes=big, priority=1)])
    assert [each.shard.key for each in sender.under_way()][UPLOADS:] == ["urgent", "c"]
    await sender.close()


async def test_what_could_take_more_waits_for_it_where_the_server_is_at_work_already(lines, monkeypatch):
    monkeypatch.setattr("flowmx.kvstore.worker.sender.HOLD", 0.5)  # longer than what is put here takes
    calls = servers(lines)
    calls.know(view(1, server(0)))
    lines.answers["at 0.1"] = [NEVER, {"numbers": [1, 1, 1]}]
    sender = Sender(calls, {})
    sender.put([item("first")])
    await settled()
    later = [item(key) for key in "abc"]
    for each in later:
        sender.put([each])
        await settled()
    assert [header["parts"][0][0] for _, _, header in lines.calls] == ["first"]  # the others are held
    lines.called.clear()
    await lines.called.wait()
    assert [[part[0] for part in header["parts"]] for _, _, header in lines.calls] == [["first"], ["a", "b", "c"]]
    await sender.close()


async def test_what_is_full_does_not_wait(lines):
    calls = servers(lines)
    calls.know(view(1, server(0)))
    sender = Sender(calls, {})
    for key in "ab":
        sender.put([item(key, nbytes=1 << 23)])
        await settled()
    assert [header["parts"][0][0] for _, _, header in lines.calls] == ["a", "b"]
    await sender.close()


@pytest.mark.parametrize("local", [False, True])
async def test_more_goes_together_where_memory_is_shared(lines, local):
    lines.local = local
    calls = servers(lines)
    calls.know(view(1, server(0)))
    lines.answers["at 0.1"] = [{"numbers": [1]}, *[NEVER] * 8]
    sender = Sender(calls, {})
    sender.put([item("first")])  # it is known with the first call
    await settled()
    sender.put([item(key, nbytes=1 << 20) for key in range(8)])
    await settled()
    assert [len(header["parts"]) for _, _, header in lines.calls[1:2]] == [8 if local else 2]
    await sender.close()


async def test_a_refusal_names_operation_and_keys_and_what_to_do(lines):
    calls = servers(lines)
    calls.know(view(1, server(0)))
    lines.answers["at 0.1"] = [Refused("worker 3 is not counted", "not_counted")]
    sender = Sender(calls, {})
    sender.put([pushed := item("a")])
    await settled()
    with pytest.raises(KVStoreError, match=r"push of 'a' was refused: worker 3 .*start it again"):
        raise pushed.exchanges[0].error


@pytest.mark.parametrize(("operation", "nbytes"), [("push", 8), ("pull", 8), ("pushpull", 16)])
async def test_a_request_under_way_tells_its_keys_and_the_bytes_of_both_ways(lines, operation, nbytes):
    calls = servers(lines)
    calls.know(view(1, server(0)))
    sender = Sender(calls, {})
    sender.put([item("a", operation), item("b", operation)])
    await settled()
    (told,) = messages.under_way.values()
    assert told[:3] == ("server 0", operation, {"keys": ["a", "b"], "count": 2, "bytes": nbytes})
    await sender.close()


# -- keys and their optimizers' states -------------------------------------------------------------------


def entry(shape, count, bound=1):
    layout = Layout(count, bound)
    layout.add({"w": shape})
    return KeyState("w", shape, np.float32, layout["w"])


@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.integers(1, 4))
def test_the_parts_of_a_key_make_up_its_array(shape, count):
    found = entry(tuple(shape), count)
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    pieces = found.pieces(array)
    assert [piece.shape for piece in pieces] == [found.shape_of(shard) for shard in found.shards]
    np.testing.assert_array_equal(np.concatenate([piece.reshape(-1) for piece in pieces]), array.reshape(-1))
    for piece in pieces:
        piece += 1  # they are its memory
    np.testing.assert_array_equal(array.reshape(-1), np.arange(array.size) + 1)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad", "nadam"])
def test_states_of_parts_are_those_of_the_whole(optimizer):
    found = entry((40, 3), 3)
    whole, parts = mx.optimizer.get_updater(mx.optimizer.create(optimizer)), {}
    weight, grad = mx.nd.ones((40, 3)), mx.nd.array(np.arange(120).reshape(40, 3))
    whole("w", grad, weight)
    for shard, piece in zip(found.shards, found.pieces(grad.asnumpy()), strict=True):
        updater = mx.optimizer.get_updater(mx.optimizer.create(optimizer))
        updater("w", mx.nd.array(piece), mx.nd.ones(piece.shape))
        parts[shard] = updater.get_states()
    joined = states.joined([found], parts, None)
    expected, got = states_file.loads(whole.get_states()), states_file.loads(joined)
    assert got.progress == expected.progress
    for ours, theirs in zip(_arrays(got.states["w"]), _arrays(expected.states["w"]), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    again = states.split([found], joined)
    for shard in found.shards:
        ours, theirs = states_file.loads(again[shard]), states_file.loads(parts[shard])
        for a, b in zip(_arrays(ours.states["w"]), _arrays(theirs.states["w"]), strict=True):
            np.testing.assert_array_equal(a, b)


def _arrays(tree):
    if isinstance(tree, (tuple, list)):
        return [array for each in tree for array in _arrays(each)]
    return [] if tree is None else [np.asarray(tree)]


def test_states_of_another_model_are_refused():
    data = states_file.dumps({"v": None}, {"num_update": 0, "counts": []}, None)
    with pytest.raises(KVStoreError, match=r"no key 'w', only \['v'\]"):
        states.split([entry((4,), 1)], data)


@given(st.lists(st.integers(1, 200 << 10), max_size=30))
def test_runs_are_neighbours_of_little_size_and_leave_nobody_out(sizes):
    found = runs(sizes)
    assert [place for run in found for place in range(len(sizes))[run]] == list(range(len(sizes)))
    for run in found:
        assert run.stop - run.start == 1 or sum(sizes[run]) <= 64 << 10


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.booleans(), st.booleans()), min_size=1, max_size=30), st.integers(1, 3)
)
def test_keys_travel_alone_or_in_one_group_of_their_home_and_dtype(keys, count):
    layout, entries = Layout(count, 3000), []
    for place, (size, double, _) in enumerate(keys):
        layout.add({place: (size,)}, 8 if double else 4)
        entries.append(KeyState(place, (size,), np.dtype("float64" if double else "float32"), layout[place]))
    groups = Groups()
    alone, joined = groups.divide(entries, [fits for _, _, fits in keys])
    assert sorted(alone + [place for _, places in joined for place in places]) == list(range(len(keys)))
    for group, places in joined:
        assert len(places) > 1
        assert {(entries[place].shards[0].home, entries[place].dtype) for place in places} == {
            (group.home, group.dtype)
        }
        assert all(keys[place][2] and len(entries[place].shards) == 1 for place in places)
    again = groups.divide(entries, [fits for _, _, fits in keys])[1]
    assert [group.number for group, _ in again] == [group.number for group, _ in joined]


def test_a_group_gathers_and_scatters_what_its_keys_hold():
    layout = Layout(1, 1000)
    layout.add({"a": (2, 3), "b": (4,)})
    group = Group(
        0, [KeyState(key, shape, np.dtype("float32"), layout[key]) for key, shape in (("a", (2, 3)), ("b", (4,)))]
    )
    arrays = [mx.nd.array(np.arange(6).reshape(2, 3)), mx.nd.array([9, 8, 7, 6])]
    mx.nd.waitall()
    tensor = group.gathered(arrays)
    assert tensor.array().tolist() == [0, 1, 2, 3, 4, 5, 9, 8, 7, 6]
    targets = [[mx.nd.zeros((2, 3))], [mx.nd.zeros(4, dtype="float64"), mx.nd.zeros(6)[1:5]]]
    mx.nd.waitall()  # nothing orders what follows, which is no operation of the engine
    group.scatter(tensor.array(), targets)
    assert [each.asnumpy().tolist() for each in targets[1]] == [[9, 8, 7, 6]] * 2
    assert targets[0][0].asnumpy().tolist() == [[0, 1, 2], [3, 4, 5]]


async def test_a_group_is_sent_by_its_number_and_with_its_keys_where_that_is_unknown(lines):
    calls = servers(lines, 1)
    calls.know(view(1, server(0)))
    lines.answers["at 0.1"] = [Refused("which?", "unknown_group"), {"numbers": [1, 1]}, {"numbers": [2, 2]}]
    layout, acknowledged = Layout(1), {}
    layout.add({"a": (2,), "b": (3,)})
    group = Group(7, [KeyState(key, (size,), np.dtype("float32"), layout[key]) for key, size in (("a", 2), ("b", 3))])
    sender = Sender(calls, acknowledged)
    for _ in range(2):
        group.advance()
        sender.put([group.item("push", Exchange(1), 0, Tensor.of(np.zeros(5, np.float32)))])
        await settled()
    headers = [header for _, _, header in lines.calls]
    assert [header.get("parts") for header in headers] == [None, [list(part) for part in group.parts], None]
    assert [(header["group"], header["numbers"], header["acknowledged"]) for header in headers] == [
        (7, 1, 0), (7, 1, 0), (7, 2, 1),
    ]  # fmt: skip
    assert acknowledged == {("a", 0): 2, ("b", 0): 2}


# -- names -----------------------------------------------------------------------------------------------


def test_names_are_kinds_of_consistency():
    assert _mode("dist_sync") == ("sync", None)
    assert _mode("dist_async") == ("async", None)
    assert _mode("dist_async", max_staleness=4) == ("stale", 4)


@pytest.mark.parametrize(("name", "bound"), [("dist_sync", 4), ("dist_async", 0), ("dist_async", 1.5)])
def test_staleness_is_for_asynchronous_stores_and_whole(name, bound):
    with pytest.raises(ValueError, match="max_staleness"):
        _mode(name, max_staleness=bound)


def test_outside_a_job_a_distributed_store_says_how_to_start_one():
    with pytest.raises(SettingError, match="flowmx launch"):
        mx.kv.create("dist_sync")
