"""The modules of a distributed store's workers: what they send, when, where, and how often."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowmx as mx
from flowmx.comm.errors import Busy, PeerGone, Refused
from flowmx.comm.frames import Message, Tensor
from flowmx.comm.node_errors import NodeGone
from flowmx.comm.view import Member, View
from flowmx.errors import KVStoreError
from flowmx.kvstore.shards import Layout, Shard
from flowmx.kvstore.worker import state_files
from flowmx.kvstore.worker.coalescing import Group, Groups, split_into_runs
from flowmx.kvstore.worker.keys import KeyState
from flowmx.kvstore.worker.outbox import MAX_SHARDS, Exchange, Item, Outbox
from flowmx.kvstore.worker.sender import UPLOADS, Sender
from flowmx.kvstore.worker.servers import Servers, primary
from flowmx.kvstore.worker.session import Session
from flowmx.kvstore.worker.store import _parse_mode
from flowmx.observability.flight import messages
from flowmx.optimizer import states_file
from flowmx.settings import SettingError


def item(key, operation="push", number=1, priority=0, nbytes=4, exchange=None, home=0):
    array = np.zeros(nbytes, np.uint8)
    shard = Shard(key, 0, home, 0, nbytes, nbytes)
    tensor = Tensor.of(array) if operation in ("push", "pushpull") else None
    target = array if operation in ("pull", "pushpull") else None
    return Item(operation, shard, number, priority, [exchange or Exchange(1)], tensor, None, target)


# -- the outbox ------------------------------------------------------------------------------------------


def test_items_are_sent_by_priority_then_in_order():
    box = Outbox(0)
    for key, priority in (("a", 0), ("b", 2), ("c", 0), ("d", 2)):
        box.put(item(key, priority=priority))
    assert [box.take()[0].shard.key for _ in range(4)] == ["b", "d", "a", "c"]
    assert box.take() == []


def test_small_items_are_bundled_up_to_a_limit():
    box = Outbox(100)
    for key in "abcde":
        box.put(item(key, nbytes=40))
    assert [len(box.take()) for _ in range(3)] == [2, 2, 1]


def test_a_big_item_is_sent_alone():
    box = Outbox(100)
    box.put(item("big", nbytes=1000))
    box.put(item("small"))
    assert [[element.shard.key for element in box.take()] for _ in range(2)] == [["big"], ["small"]]


def test_a_request_carries_one_operation_and_no_more_parts_than_it_may():
    box = Outbox(1 << 30)
    for number in range(MAX_SHARDS + 1):
        box.put(item(number))
    box.put(item("last", "pull"))
    assert [len(box.take()) for _ in range(3)] == [MAX_SHARDS, 1, 1]


def test_a_pull_is_merged_into_its_unsent_push():
    box = Outbox(100)
    pushed, pulled = Exchange(1), Exchange(1)
    box.put(item("a", number=3, exchange=pushed))
    box.put(item("a", "pull", number=3, exchange=pulled))
    (result,) = box.take()
    assert result.operation == "pushpull"
    assert result.exchanges == [pushed, pulled]
    assert result.tensor is not None and result.target is not None


def test_a_pull_of_another_or_a_sent_push_is_separate():
    box = Outbox(100)
    box.put(item("a", number=3))
    box.put(item("a", "pull", number=2))
    assert [box.take()[0].operation for _ in range(2)] == ["push", "pull"]
    box.put(item("a", "pull", number=3))
    assert box.take()[0].operation == "pull"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2), st.integers(1, 60), st.booleans()), max_size=40))
def test_every_item_is_taken_once(puts):
    box, exchanges = Outbox(100), []
    for key, priority, nbytes, pulls in puts:
        exchanges.append(Exchange(1))
        box.put(item(key, "pull" if pulls else "push", 1, priority, nbytes, exchanges[-1]))
    bundled = []
    while bundle := box.take():
        assert len({element.operation for element in bundle}) == 1
        assert len(bundle) == 1 or sum(element.nbytes for element in bundle) <= 100
        bundled += [exchange for element in bundle for exchange in element.exchanges]
    assert sorted(map(id, bundled)) == sorted(map(id, exchanges))


# -- barriers --------------------------------------------------------------------------------------------


class RecordingSession(Session):
    """A session that records barriers and calls; barriers end at once."""

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

    async def _call_for_parts(self, operation, header, entries, tensors, counts=None, ranges=False):
        self.did.append((operation, header.get("exists"), tensors))
        return {}


async def test_after_a_barrier_keys_are_enrolled_again_before_any_worker_continues():
    session = RecordingSession(1)

    async def then():
        session.did.append("then")

    await session.barrier([], then)
    rest, meeting, again, *after = session.did
    assert rest[0] == "rest"
    assert meeting == ("kvstore", True)
    assert again == ("init", True, {}), "keys already exist, and keep their values"
    assert after == ["then", ("kvstore 7", True)]


@pytest.mark.parametrize(
    ("rank", "past", "first"),
    [(0, (), [[4, 5, 1]] * 2), (1, (), []), (0, ("optimizer 4",), [])],
    ids=["the first", "another", "the first, started again"],
)
async def test_an_optimizer_is_set_by_one_worker_and_repeated_by_all(rank, past, first):
    session = RecordingSession(rank, past)
    await session.configure_together({"name": "sgd"}, 4)
    at = session.did.index(("optimizer 4", False))
    assert [order for _, _, order in session.did[:at]] == first
    assert session.did[at + 1 :] == [("set_optimizer", home, [4, 0, 0]) for home in range(2)], "below any other's turn"


# -- exchanges -------------------------------------------------------------------------------------------


def test_an_exchange_ends_with_its_last_part_and_calls_back_once():
    called = []
    exchange = Exchange(2)
    exchange.on_end(called.append)
    exchange.count_responses()
    assert not exchange.ended
    exchange.count_responses()
    exchange.end(ValueError("too late"))
    assert called == [exchange]
    assert exchange.error is None


def test_an_exchange_without_parts_ends_at_once():
    assert Exchange(0).ended


def test_an_error_in_finish_is_the_exchanges_error():
    exchange = Exchange(1, lambda: 1 / 0)
    exchange.count_responses()
    assert isinstance(exchange.error, ZeroDivisionError)


# -- the servers -----------------------------------------------------------------------------------------


def server(rank, incarnation=1, state="alive"):
    return Member(f"s{rank}", "server", rank, f"at {rank}.{incarnation}", incarnation=incarnation, state=state)


def view(epoch, *members, lost_nodes=()):
    return View("job", 1, epoch, "running", tuple(members), tuple(lost_nodes))


NEVER = None


class Channels:
    """Channels to servers by address; each call gets the next answer for its address, or waits."""

    def __init__(self):
        self.calls = []
        self.answers = {}
        self.closed = []
        self.called = asyncio.Event()
        self.local = False

    def connect(self, address):
        return Channel(self, address)


class Channel:
    def __init__(self, channels, address):
        self.channels, self.address = channels, address

    async def call(self, operation, header, tensors=(), into=None, timeout=None, on_sent=lambda: None):
        self.channels.calls.append((self.address, operation, header))
        self.channels.called.set()
        answers = self.channels.answers.get(self.address, [])
        if not answers or answers[0] is NEVER:
            del answers[:1]
            async with asyncio.timeout(timeout):
                await asyncio.Event().wait()
        answer = answers.pop(0)
        on_sent()
        if isinstance(answer, Exception):
            raise answer
        return Message(answer, [])

    async def close(self):
        self.channels.closed.append(self.address)

    @property
    def is_local(self):
        return self.channels.local


@pytest.fixture
def channels():
    return Channels()


def servers(channels, count=2, patience=5.0, timeout=5.0):
    return Servers(count, channels.connect, {"node": "w", "incarnation": 7}, patience, timeout)


@pytest.mark.parametrize(
    ("alive", "home", "rank"), [((0, 1, 2), 1, 1), ((0, 2), 1, 2), ((0,), 1, 0), ((1,), 2, 1), ((), 0, None)]
)
def test_a_home_is_served_by_the_next_live_server_of_the_ring(alive, home, rank):
    result = primary(
        view(1, *(server(element, state="alive" if element in alive else "gone") for element in range(3))), home, 3
    )
    assert (result and result.rank) == rank


async def test_calls_name_their_sender(channels):
    calls = servers(channels)
    calls.update_view(view(1, server(0), server(1)))
    channels.answers["at 1.1"] = [{"ok": 1}]
    assert (await calls.call(1, "stats", {"x": 2})).header == {"ok": 1}
    assert channels.calls == [("at 1.1", "stats", {"node": "w", "incarnation": 7, "x": 2})]
    await calls.close()
    assert channels.closed == ["at 1.1"]


@pytest.mark.parametrize(
    "trouble", [PeerGone("cut"), Refused("not me", "moved"), Busy("full"), TimeoutError("long")], ids=repr
)
async def test_temporary_errors_are_retried(channels, trouble):
    calls = servers(channels)
    calls.update_view(view(1, server(0)))
    probed = [{}] if isinstance(trouble, PeerGone | TimeoutError) else []
    channels.answers["at 0.1"] = [trouble, *probed, {"ok": 1}]
    assert (await calls.call(0, "push", {})).header == {"ok": 1}


async def test_an_unanswered_call_is_retried_on_a_new_channel(channels):
    calls = servers(channels, timeout=0.02)
    calls.update_view(view(1, server(0)))
    channels.answers["at 0.1"] = [NEVER, {}, {"ok": 1}]
    assert (await calls.call(0, "push", {})).header == {"ok": 1}
    assert [operation for _, operation, _ in channels.calls] == ["push", "local", "push"]
    await calls.close()
    assert channels.closed == ["at 0.1", "at 0.1"]


async def test_an_unreachable_server_is_named_in_the_error(channels):
    calls = servers(channels, patience=0.05, timeout=0.01)
    calls.update_view(view(1, server(0)))
    with pytest.raises(KVStoreError, match=r"push: server 0 at at 0.1 has not been reached for 0\.\d s"):
        await calls.call(0, "push", {})


async def test_a_slow_server_is_not_an_error(channels):
    calls = servers(channels, patience=0.0, timeout=0.01)
    calls.update_view(view(1, server(0)))
    channels.answers["at 0.1"] = [TimeoutError("long"), {}, PeerGone("cut"), {}, TimeoutError("long"), {}, {"ok": 1}]
    assert (await calls.call(0, "push", {})).header == {"ok": 1}


async def test_a_refusal_is_not_retried(channels):
    calls = servers(channels)
    calls.update_view(view(1, server(0)))
    channels.answers["at 0.1"] = [Refused("no such key", "not_initialized"), {}]
    with pytest.raises(Refused, match="no such key"):
        await calls.call(0, "push", {})


async def test_a_call_of_a_server_that_is_replaced_is_made_to_its_successor(channels):
    calls = servers(channels)
    calls.update_view(view(1, server(0), server(1)))
    call = asyncio.create_task(calls.call(0, "push", {}))
    await channels.called.wait()  # server 0 never answers
    channels.answers["at 1.1"] = [{"by": 1}]
    calls.update_view(view(2, server(0, state="gone"), server(1)))
    assert (await call).header == {"by": 1}
    await calls.close()
    assert "at 0.1" in channels.closed


async def test_a_restarted_server_is_called_again(channels):
    calls = servers(channels, 1)
    calls.update_view(view(1, server(0)))
    call = asyncio.create_task(calls.call(0, "push", {}))
    await channels.called.wait()
    channels.answers["at 0.2"] = [{"life": 2}]
    calls.update_view(view(2, server(0, 2)))
    assert (await call).header == {"life": 2}


async def probing(channels):
    """Start a call whose connection broke, and which now probes a server that does not answer."""
    calls = servers(channels, timeout=3600)
    calls.update_view(view(1, server(0), server(1)))
    channels.answers["at 0.1"] = [PeerGone("cut")]
    call = asyncio.create_task(calls.call(0, "push", {}))
    while len(channels.calls) < 2:
        await asyncio.sleep(0)
    assert channels.calls[-1][1] == "local"
    return calls, call


async def test_the_end_of_the_job_ends_an_unanswered_probe(channels):
    calls, call = await probing(channels)
    calls.fail(NodeGone("the job has failed: server 0 is gone"))
    with pytest.raises(NodeGone, match="server 0 is gone"):
        await call


async def test_a_successor_is_called_during_an_unanswered_probe(channels):
    calls, call = await probing(channels)
    channels.answers["at 1.1"] = [{"by": 1}]
    calls.update_view(view(2, server(0, state="gone"), server(1)))
    assert (await call).header == {"by": 1}


async def test_a_call_cancelled_during_a_probe_stays_cancelled(channels):
    _, call = await probing(channels)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_home_without_servers_is_named_in_the_error(channels):
    calls = servers(channels, 1, patience=0.01)
    lost = Member("s0", "server", 0, host="here", state="gone", why="killed")
    calls.update_view(view(2, lost, lost_nodes=[lost]))
    with pytest.raises(KVStoreError, match=r"home 0 for 0.01 s.*server 0 on here .* is gone: killed"):
        await calls.call(0, "pull", {})


async def test_the_end_of_the_job_ends_waiting_and_later_calls(channels):
    calls = servers(channels)
    calls.update_view(view(1, server(0), server(1)))
    call = asyncio.create_task(calls.call(0, "push", {}))
    await channels.called.wait()
    calls.fail(NodeGone("worker 1 is gone"))
    for awaited in (call, calls.call(1, "push", {})):
        with pytest.raises(NodeGone, match="worker 1 is gone"):
            await awaited


async def test_a_cancelled_call_stays_cancelled(channels):
    calls = servers(channels)
    calls.update_view(view(1, server(0)))
    call = asyncio.create_task(calls.call(0, "push", {}))
    await channels.called.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not calls._calls


# -- the sender ------------------------------------------------------------------------------------------


async def run_loop_turns():
    for _ in range(20):
        await asyncio.sleep(0)


async def test_items_put_in_one_turn_are_sent_in_one_request(channels):
    calls, acknowledged = servers(channels), {("a", 0): 4}
    calls.update_view(view(1, server(0)))
    channels.answers["at 0.1"] = [{"numbers": [5, 1]}]
    sender = Sender(calls, acknowledged)
    items = [item("a", number=5), item("b")]
    sender.put(items[:1])
    sender.put(items[1:])
    await run_loop_turns()
    (call,) = channels.calls
    assert call[2]["parts"] == [["a", 0, 0, 5, 4], ["b", 0, 0, 1, 0]]
    assert acknowledged == {("a", 0): 5, ("b", 0): 1}
    assert all(element.exchanges[0].ended for element in items)


async def test_requests_waiting_for_answers_block_no_others(channels):
    calls = servers(channels)
    calls.update_view(view(1, server(0)))

    async def never(self, operation, header, tensors=(), into=None, timeout=None, on_sent=lambda: None):
        channels.calls.append(header["parts"][0][0])
        on_sent()
        await asyncio.Event().wait()

    channels.connect = lambda address: type("Silent", (Channel,), {"call": never})(channels, address)
    calls = servers(channels)
    calls.update_view(view(1, server(0)))
    sender = Sender(calls, {})
    big = 1 << 23
    sender.put([item(key, nbytes=big) for key in range(2 * UPLOADS)])
    await run_loop_turns()
    assert channels.calls == list(range(2 * UPLOADS))
    assert [element.shard.key for element in sender.pending()] == list(range(2 * UPLOADS))
    await sender.close()


async def test_uploads_are_limited_and_the_most_urgent_are_next(channels):
    calls = servers(channels)
    calls.update_view(view(1, server(0)))
    sender = Sender(calls, {})
    big = 1 << 23
    sender.put([item(key, nbytes=big) for key in "abc"])
    await run_loop_turns()
    assert [header["parts"][0][0] for _, _, header in channels.calls] == list("ab"[:UPLOADS])
    sender.put([item("urgent", nbytes=big, priority=1)])
    assert [element.shard.key for element in sender.pending()][UPLOADS:] == ["urgent", "c"]
    await sender.close()


async def test_a_partial_request_waits_while_the_server_is_busy(channels, monkeypatch):
    monkeypatch.setattr("flowmx.kvstore.worker.sender.HOLD_DELAY", 0.5)  # longer than this test's sends take
    calls = servers(channels)
    calls.update_view(view(1, server(0)))
    channels.answers["at 0.1"] = [NEVER, {"numbers": [1, 1, 1]}]
    sender = Sender(calls, {})
    sender.put([item("first")])
    await run_loop_turns()
    later = [item(key) for key in "abc"]
    for element in later:
        sender.put([element])
        await run_loop_turns()
    assert [header["parts"][0][0] for _, _, header in channels.calls] == ["first"]  # the others wait
    channels.called.clear()
    await channels.called.wait()
    assert [[part[0] for part in header["parts"]] for _, _, header in channels.calls] == [["first"], ["a", "b", "c"]]
    await sender.close()


async def test_a_full_request_does_not_wait(channels):
    calls = servers(channels)
    calls.update_view(view(1, server(0)))
    sender = Sender(calls, {})
    for key in "ab":
        sender.put([item(key, nbytes=1 << 23)])
        await run_loop_turns()
    assert [header["parts"][0][0] for _, _, header in channels.calls] == ["a", "b"]
    await sender.close()


@pytest.mark.parametrize("local", [False, True])
async def test_bundles_are_bigger_with_shared_memory(channels, local):
    channels.local = local
    calls = servers(channels)
    calls.update_view(view(1, server(0)))
    channels.answers["at 0.1"] = [{"numbers": [1]}, *[NEVER] * 8]
    sender = Sender(calls, {})
    sender.put([item("first")])  # it is known with the first call
    await run_loop_turns()
    sender.put([item(key, nbytes=1 << 20) for key in range(8)])
    await run_loop_turns()
    assert [len(header["parts"]) for _, _, header in channels.calls[1:2]] == [8 if local else 2]
    await sender.close()


async def test_a_refusal_names_operation_and_keys_and_what_to_do(channels):
    calls = servers(channels)
    calls.update_view(view(1, server(0)))
    channels.answers["at 0.1"] = [Refused("worker 3 is not counted", "not_counted")]
    sender = Sender(calls, {})
    sender.put([pushed := item("a")])
    await run_loop_turns()
    with pytest.raises(KVStoreError, match=r"push of 'a' was refused: worker 3 .*restart it"):
        raise pushed.exchanges[0].error


@pytest.mark.parametrize(("operation", "nbytes"), [("push", 8), ("pull", 8), ("pushpull", 16)])
async def test_a_running_request_reports_keys_and_bytes(channels, operation, nbytes):
    calls = servers(channels)
    calls.update_view(view(1, server(0)))
    sender = Sender(calls, {})
    sender.put([item("a", operation), item("b", operation)])
    await run_loop_turns()
    (record,) = messages.under_way.values()
    assert record[:3] == ("server 0", operation, {"keys": ["a", "b"], "count": 2, "bytes": nbytes})
    await sender.close()


# -- keys and their optimizers' states -------------------------------------------------------------------


def entry(shape, count, bound=1):
    layout = Layout(count, bound)
    layout.add({"w": shape})
    return KeyState("w", shape, np.float32, layout["w"])


@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.integers(1, 4))
def test_the_parts_of_a_key_make_up_its_array(shape, count):
    result = entry(tuple(shape), count)
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    pieces = result.pieces(array)
    assert [piece.shape for piece in pieces] == [result.shape_of(shard) for shard in result.shards]
    np.testing.assert_array_equal(np.concatenate([piece.reshape(-1) for piece in pieces]), array.reshape(-1))
    for piece in pieces:
        piece += 1  # they are its memory
    np.testing.assert_array_equal(array.reshape(-1), np.arange(array.size) + 1)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad", "nadam"])
def test_states_of_parts_equal_those_of_the_whole(optimizer):
    result = entry((40, 3), 3)
    whole, parts = mx.optimizer.get_updater(mx.optimizer.create(optimizer)), {}
    weight, grad = mx.nd.ones((40, 3)), mx.nd.array(np.arange(120).reshape(40, 3))
    whole("w", grad, weight)
    for shard, piece in zip(result.shards, result.pieces(grad.asnumpy()), strict=True):
        updater = mx.optimizer.get_updater(mx.optimizer.create(optimizer))
        updater("w", mx.nd.array(piece), mx.nd.ones(piece.shape))
        parts[shard] = updater.get_states()
    joined = state_files.join_states([result], parts, None)
    expected, got = states_file.loads(whole.get_states()), states_file.loads(joined)
    assert got.progress == expected.progress
    for ours, theirs in zip(_arrays(got.states["w"]), _arrays(expected.states["w"]), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    again = state_files.split_states([result], joined)
    for shard in result.shards:
        ours, theirs = states_file.loads(again[shard]), states_file.loads(parts[shard])
        for a, b in zip(_arrays(ours.states["w"]), _arrays(theirs.states["w"]), strict=True):
            np.testing.assert_array_equal(a, b)


def _arrays(tree):
    if isinstance(tree, (tuple, list)):
        return [array for element in tree for array in _arrays(element)]
    return [] if tree is None else [np.asarray(tree)]


def test_states_of_another_model_are_refused():
    data = states_file.dumps({"v": None}, {"num_update": 0, "counts": []}, None)
    with pytest.raises(KVStoreError, match=r"of the keys \['v'\], and this store has \['w'\]"):
        state_files.split_states([entry((4,), 1)], data)


@given(st.lists(st.integers(1, 200 << 10), max_size=30))
def test_runs_are_small_neighbors_and_cover_all_keys(sizes):
    result = split_into_runs(sizes)
    assert [place for run in result for place in range(len(sizes))[run]] == list(range(len(sizes)))
    for run in result:
        assert run.stop - run.start == 1 or sum(sizes[run]) <= 64 << 10


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.booleans(), st.booleans()), min_size=1, max_size=30), st.integers(1, 3)
)
def test_keys_are_sent_alone_or_in_a_group_of_their_home_and_dtype(keys, count):
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
    tensor = group.gather(arrays)
    assert tensor.array().tolist() == [0, 1, 2, 3, 4, 5, 9, 8, 7, 6]
    targets = [[mx.nd.zeros((2, 3))], [mx.nd.zeros(4, dtype="float64"), mx.nd.zeros(6)[1:5]]]
    mx.nd.waitall()  # the next lines run outside the engine, unordered
    group.scatter(tensor.array(), targets)
    assert [target.asnumpy().tolist() for target in targets[1]] == [[9, 8, 7, 6]] * 2
    assert targets[0][0].asnumpy().tolist() == [[0, 1, 2], [3, 4, 5]]


async def test_a_group_is_sent_by_number_and_with_keys_if_unknown(channels):
    calls = servers(channels, 1)
    calls.update_view(view(1, server(0)))
    channels.answers["at 0.1"] = [Refused("which?", "unknown_group"), {"numbers": [1, 1]}, {"numbers": [2, 2]}]
    layout, acknowledged = Layout(1), {}
    layout.add({"a": (2,), "b": (3,)})
    group = Group(7, [KeyState(key, (size,), np.dtype("float32"), layout[key]) for key, size in (("a", 2), ("b", 3))])
    sender = Sender(calls, acknowledged)
    for _ in range(2):
        group.advance()
        sender.put([group.item("push", Exchange(1), 0, Tensor.of(np.zeros(5, np.float32)))])
        await run_loop_turns()
    headers = [header for _, _, header in channels.calls]
    assert [header.get("parts") for header in headers] == [None, [list(part) for part in group.parts], None]
    assert [(header["group"], header["numbers"], header["acknowledged"]) for header in headers] == [
        (7, 1, 0), (7, 1, 0), (7, 2, 1),
    ]  # fmt: skip
    assert acknowledged == {("a", 0): 2, ("b", 0): 2}


# -- names -----------------------------------------------------------------------------------------------


def test_names_determine_the_consistency_mode():
    assert _parse_mode("dist_sync") == ("sync", None)
    assert _parse_mode("dist_async") == ("async", None)
    assert _parse_mode("dist_async", max_staleness=4) == ("stale", 4)


@pytest.mark.parametrize(("name", "bound"), [("dist_sync", 4), ("dist_async", 0), ("dist_async", 1.5)])
def test_staleness_is_an_int_for_asynchronous_stores(name, bound):
    with pytest.raises(ValueError, match="max_staleness"):
        _parse_mode(name, max_staleness=bound)


def test_outside_a_job_the_error_explains_how_to_start_one():
    with pytest.raises(SettingError, match="flowmx launch"):
        mx.kv.create("dist_sync")
