"""Access control of a server: only workers and servers of the view can change anything."""

import asyncio

import numpy as np
import pytest

from flowmx.comm.client import Peer
from flowmx.comm.errors import CommError, Refused
from flowmx.comm.server import Caller
from flowmx.comm.view import Member, View
from flowmx.kvstore.server.callers import Callers
from flowmx.kvstore.server.service import OPERATIONS
from tests.kvstore.test_server_service import KEY, Job, init_all

PART = [KEY, 0, 0]
WRITES = {
    "open": {"mode": "sync"},
    "set_optimizer": {"optimizer": None},
    "init": {"parts": [PART], "turn": 1, "rank": 0, "joined": 1},
    "rest": {"parts": [PART], "turn": 2},
    "push": {"parts": [[*PART, 1]]},
    "pull": {"parts": [PART]},
    "pushpull": {"parts": [[*PART, 1]]},
    "give_up": {"parts": [[*PART, 1]], "why": "it failed"},
    "position": {"position": [1, 0, 0]},
    "row_sparse_pull": {"parts": [PART]},
    "save_states": {"parts": [PART]},
    "load_states": {"parts": [PART], "turn": 2},
    "window": {"parts": [PART]},
    "messages": {"messages": []},
}


def view(epoch, workers=(), servers=()):
    members = [Member(name, "worker", rank, incarnation=1) for rank, name in enumerate(workers)]
    members += [Member(name, "server", rank, incarnation=1) for rank, name in enumerate(servers)]
    return View("job", 1, epoch, "running", tuple(members))


def test_every_operation_is_tried():
    assert WRITES.keys() | {"stats"} == OPERATIONS.keys()


@pytest.mark.parametrize(("node", "incarnation"), [("unknown", 1), ("worker0", 2), ("", 0)])
@pytest.mark.parametrize("operation", WRITES)
async def test_requests_of_unknown_nodes_change_nothing(operation, node, incarnation):
    async with Job(servers=1, workers=1) as job:
        await init_all(job, np.zeros(3, np.float32))
        job.servers[0].callers.patience = 0.01
        async with Peer(job.services[0].address, node=node) as peer:
            with pytest.raises(Refused) as caught:
                await peer.call(operation, {"incarnation": incarnation, **WRITES[operation]}, [np.ones(3, np.float32)])
        assert caught.value.kind == ("not_member" if node else "invalid")
        assert (await job.workers[0].pull()).tolist() == [0, 0, 0]


@pytest.mark.parametrize("operation", [name for name, role in OPERATIONS.items() if role == "worker"])
async def test_a_server_cannot_call_operations_of_workers(operation):
    async with Job(servers=1, workers=1) as job, Peer(job.services[0].address, node="server1") as peer:
        with pytest.raises(Refused, match="server1:1 is not in view 1 as a worker"):
            await peer.call(operation, {"incarnation": 1, **WRITES[operation]})


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"messages": [[{"kind": "command", "epoch": 1}, 0]]}, "unknown kind of message between servers"),
        ({"messages": [[{"kind": "copy", "epoch": 1}, 0]]}, "of kind 'copy' is damaged"),
        ({"messages": ["x"]}, "a message between servers is"),
    ],
)
async def test_refuses_invalid_messages(header, message):
    async with Job(servers=1, workers=1) as job, Peer(job.services[0].address, node="server1") as peer:
        with pytest.raises(CommError, match=message):
            await peer.call("messages", {"incarnation": 1, **header})


async def test_a_caller_that_just_joined_is_awaited():
    callers, answered = Callers(), []

    async def handler(caller, message):
        answered.append(caller.node)

    guarded = callers.restrict_to("worker", handler)
    callers.update_view(view(1, ["a"]))
    waiting = asyncio.create_task(guarded(Caller("push", "b", incarnation=1), None))
    await guarded(Caller("push", "a", incarnation=1), None)
    assert answered == ["a"]
    callers.update_view(view(2, ["a", "b"]))
    await waiting
    assert answered == ["a", "b"]


async def test_a_caller_that_has_left_is_refused_at_once():
    callers = Callers(patience=1e9)
    callers.update_view(view(1, ["a", "b"]))
    callers.update_view(view(2, ["a"]))
    with pytest.raises(Refused, match="b:1 is not in view 2 as a worker"):
        await callers.restrict_to("worker", None)(Caller("push", "b", incarnation=1), None)


@pytest.mark.parametrize(
    ("part", "message"),
    [(["k" * 1025, 0, 0, 1], "string of at most 1024 characters"), ([*PART, 5000], "more than 4096 ahead of its turn")],
)
async def test_waiting_pushes_of_a_worker_are_bounded(part, message):
    async with Job(servers=1, workers=1) as job:
        await init_all(job, np.zeros(3, np.float32))
        with pytest.raises((Refused, ValueError), match=message):
            await job.workers[0].call(0, "push", {"parts": [part]}, [np.ones(3, np.float32)])


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32])
async def test_compressed_gradients_are_for_float32(dtype):
    async with Job(servers=1, workers=1) as job:
        await init_all(job, np.zeros(3, dtype))
        with pytest.raises(Refused, match="compressed gradients must be float32, and the value is"):
            await job.workers[0].push(np.zeros(3, np.float16), sequence=1, packing={"type": "fp16"})
        assert (await job.workers[0].step(np.ones(3, dtype))).tolist() == [1, 1, 1]
