"""Joined requests: many small parts with one tensor, and the same results as separate requests."""

import asyncio

import numpy as np
import pytest

import flowmx as mx
from flowmx.comm.errors import Refused, WireError
from flowmx.errors import MXNetError
from flowmx.kvstore.row_sparse_wire import RowSparseGradient
from flowmx.kvstore.server import coalescing, store, wire
from flowmx.kvstore.server import protocol as p
from flowmx.kvstore.server.store import as_array
from tests.kvstore.test_server_service import Job, arrays, use

SHAPES = [(3,), (2, 2), (), (0, 4), (64,), (5, 1, 2)]
KEYS = len(SHAPES)


def parts_of(keys=KEYS, home=0):
    return [[f"k{i}", 0, home] for i in range(keys)]


def flat(values):
    return np.concatenate([value.reshape(-1) for value in values])


def gradients(seed, shapes=SHAPES, dtype=np.float32):
    return [instance.astype(dtype) for shape in shapes for instance in arrays(1, shape, seed=seed + len(shape))]


async def init(job, values, home=0):
    async def one(worker):
        header = {"turn": 1, "rank": worker.rank, "joined": 1, "parts": parts_of(len(values), home)}
        await worker.call(home, "init", header, values if worker.rank == 0 else [])

    await asyncio.gather(*map(one, job.workers))


async def ask(worker, operation, header, tensor=None, home=0):
    answer = await worker.call(home, operation, {"joined": True, **header}, [] if tensor is None else [tensor])
    return answer.header["numbers"], [tensor.array() for tensor in answer.tensors]


def numbered(number, keys=KEYS):
    return [[*part, number, number - 1] for part in parts_of(keys)]


async def reference(make, rounds, workers, shapes=SHAPES, dtype=np.float32):
    """Return the values after each round, by separate requests."""
    results = []
    async with Job(servers=1, workers=workers) as job:
        if make is not None:
            await use(job, make())
        await init(job, gradients(100, shapes, dtype))
        for number in range(1, rounds + 1):
            pushes = [
                worker.call(0, "pushpull", {"parts": numbered(number, len(shapes))},
                            gradients(10 * number + worker.rank, shapes, dtype))
                for worker in job.workers
            ]  # fmt: skip
            answers = await asyncio.gather(*pushes)
            results.append([tensor.array().copy() for tensor in answers[0].tensors])
    return results


OPTIMIZERS = {
    "none": None,
    "sgd": lambda: mx.optimizer.SGD(learning_rate=0.1, wd=0.01),
    "momentum": lambda: mx.optimizer.SGD(learning_rate=0.1, momentum=0.9, wd=0.01, clip_gradient=0.5),
    "adam": lambda: mx.optimizer.Adam(learning_rate=0.1),
    "ftrl": lambda: mx.optimizer.Ftrl(learning_rate=0.1),
}


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
async def test_joined_requests_equal_separate_requests(optimizer, servers):
    make = OPTIMIZERS[optimizer]
    expected = await reference(make, 4, workers=3)
    async with Job(servers=servers, workers=3) as job:
        for home in range(servers if make else 0):
            await job.workers[0].call(home, "set_optimizer", {"optimizer": make().get_config()})
        await init(job, gradients(100))
        for number in range(1, 5):
            pushes = [
                ask(worker, "pushpull", {"parts": numbered(number)}, flat(gradients(10 * number + worker.rank)))
                for worker in job.workers
            ]
            for numbers, (values,) in await asyncio.gather(*pushes):
                assert numbers == [number] * KEYS
                np.testing.assert_array_equal(values, flat(expected[number - 1]))


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "bfloat16"])
async def test_any_dtype(dtype):
    shapes = [(3,), (40,)]
    expected = await reference(None, 1, workers=2, shapes=shapes, dtype=dtype)
    async with Job(servers=1, workers=2) as job:
        await init(job, gradients(100, shapes, dtype))
        pushes = [
            ask(worker, "pushpull", {"parts": numbered(1, 2)}, flat(gradients(10 + worker.rank, shapes, dtype)))
            for worker in job.workers
        ]
        for _, (values,) in await asyncio.gather(*pushes):
            assert values.dtype == expected[0][0].dtype
            np.testing.assert_array_equal(values.astype(float), flat(expected[0]).astype(float))


async def test_workers_may_join_parts_differently():
    expected = await reference(None, 3, workers=3)
    async with Job(servers=1, workers=3) as job:
        await init(job, gradients(100))
        for number in range(1, 4):
            inputs = [gradients(10 * number + rank) for rank in range(3)]
            parts, order = numbered(number), [4, 0, 5, 2, 1, 3]
            pulled = await asyncio.gather(
                ask(job.workers[0], "pushpull", {"parts": parts}, flat(inputs[0])),
                ask(job.workers[1], "pushpull", {"parts": parts[:2]}, flat(inputs[1][:2])),
                ask(job.workers[1], "pushpull", {"parts": parts[2:5]}, flat(inputs[1][2:5])),
                job.workers[1].call(0, "pushpull", {"parts": parts[5:]}, inputs[1][5:]),
                ask(job.workers[2], "push", {"parts": [parts[i] for i in order]}, flat([inputs[2][i] for i in order])),
            )
            np.testing.assert_array_equal(pulled[0][1][0], flat(expected[number - 1]))
            np.testing.assert_array_equal(pulled[2][1][0], flat(expected[number - 1][2:5]))
            _, (values,) = await ask(job.workers[2], "pull", {"parts": [parts[i] for i in order]})
            np.testing.assert_array_equal(values, flat([expected[number - 1][i] for i in order]))


async def test_a_group_is_identified_by_its_number():
    async with Job(servers=1, workers=2) as job:
        await init(job, [np.zeros(shape, np.float32) for shape in SHAPES])
        first = flat(gradients(1))
        for worker in job.workers:
            with pytest.raises(Refused, match="has not sent group 7 to this server") as caught:
                await ask(worker, "pushpull", {"group": 7, "numbers": 1, "acknowledged": 0}, first)
            assert caught.value.kind == "unknown_group"
        header = {"parts": parts_of(), "group": 7, "numbers": 1}
        await asyncio.gather(*(ask(worker, "pushpull", header, first) for worker in job.workers))
        for number, numbers in ((2, 2), (3, [3] * KEYS)):
            header = {"group": 7, "numbers": numbers, "acknowledged": number - 1}
            pushes = [ask(worker, "pushpull", header, number * first) for worker in job.workers]
            for numbers, (values,) in await asyncio.gather(*pushes):
                assert numbers == [number] * KEYS
                np.testing.assert_array_equal(values, number * first + number * first)
        _, (values,) = await ask(job.workers[0], "pull", {"group": 7, "numbers": 3})
        np.testing.assert_array_equal(values, 3 * first + 3 * first)
        await ask(job.workers[0], "pull", {"group": 7, "parts": parts_of(1)})  # another list under the same number
        _, (values,) = await ask(job.workers[0], "pull", {"group": 7})
        assert values.size == 3


async def test_groups_are_forgotten_with_their_worker():
    async with Job(servers=1, workers=2) as job:
        await init(job, gradients(0))
        await ask(job.workers[1], "pull", {"parts": parts_of(), "group": 0})
        groups = job.servers[0].groups._groups
        assert set(groups) == {"worker1:1"}
        job.joined.discard(1)
        job.tell()
        assert not groups.keys() & set(job.servers[0].groups._groups)


async def test_groups_are_bounded(monkeypatch):
    monkeypatch.setattr(coalescing, "MAX_GROUPS", 2)
    monkeypatch.setattr(coalescing, "MAX_PARTS", 6)
    async with Job(servers=1, workers=1) as job:
        (worker,) = job.workers
        await init(job, gradients(0))
        await ask(worker, "pull", {"parts": parts_of(3), "group": 0})
        for number, parts in ((1, 4), (-1, 1)):
            with pytest.raises(Refused, match="a worker has at most 2 groups with 6 parts"):
                await ask(worker, "pull", {"parts": parts_of(parts), "group": number})
        await ask(worker, "pull", {"parts": parts_of(3), "group": 1})
        with pytest.raises(Refused, match="would have 3 with 7"):
            await ask(worker, "pull", {"parts": parts_of(1), "group": 2})
        await ask(worker, "pull", {"parts": parts_of(3), "group": 1})  # the same again


REFUSED = [
    ("push", {"parts": numbered(1)}, None, "has 0 tensors, expected 1"),
    ("pull", {"parts": numbered(1)}, np.zeros(81, np.float32), "has 1 tensors, expected 0"),
    (
        "push",
        {"parts": numbered(1)},
        np.zeros(80, np.float32),
        r"has a tensor of float32 \[80\]; expected float32 \[82\]",
    ),
    ("push", {"parts": numbered(1)}, np.zeros(82), r"has a tensor of float64 \[82\]; expected float32 \[82\]"),
    ("push", {"parts": numbered(1)}, np.zeros((82, 1), np.float32), r"has a tensor of float32 \[82, 1\]"),
    ("push", {}, np.zeros(82, np.float32), "needs 'parts', or the 'group'"),
    ("push", {"parts": [["k0", 0, 0, 1, 0, {"type": "fp16"}]]}, np.zeros(3, np.float32), "the last two optional"),
    ("push", {"parts": [["k0", 0, 0, -1]]}, np.zeros(3, np.float32), "'numbers' is .*expected an int from 0 for each"),
    ("pull", {"parts": parts_of(), "numbers": [1]}, None, "int from 0 for each of the 6 parts, or one for all"),
    ("pull", {"parts": parts_of(), "numbers": -1}, None, "'numbers' is .*expected an int from 0"),
    ("pull", {"parts": parts_of(), "acknowledged": [True] * 6}, None, "'acknowledged' is .*expected an int from 0"),
    ("pull", {"parts": parts_of(), "acknowledged": 9}, None, "and 9 were acknowledged"),
    ("pull", {"parts": [*parts_of(), ["other", 0, 0]]}, None, r"key 'other' \(part 0\) has no value here"),
    ("push", {"parts": [["k0", 0, 0, 1], ["other", 0, 0, 1]]}, np.zeros(3, np.float32), "'other' .* has no value"),
    ("pull", {"parts": [["k0", 0, 0], ["double", 0, 0]]}, None, "'k0' is float32, and key 'double' is float64"),
    ("pull", {"parts": [["k0", 0, 5]]}, None, "home 5 does not exist"),
    ("push", {"parts": [["k0", 0, 5, 1]]}, np.zeros(3, np.float32), "home 5 does not exist"),
    ("pull", {"parts": [["k0"]]}, None, "the last two optional"),
    ("pull", {"parts": [7]}, None, "the last two optional"),
    ("pull", {"parts": parts_of(), "more": 1}, None, "'more', which is unknown"),
    ("pull", {"parts": parts_of(), "group": "a"}, None, "'group' is 'a', and must be int"),
    ("pull", {"parts": parts_of(), "joined": 1}, None, "'joined' is 1, and must be bool"),
    ("pull", {"parts": parts_of(), "joined": False, "group": 1}, None, "'group', which is unknown"),
]


@pytest.mark.parametrize(("operation", "header", "tensor", "message"), REFUSED)
async def test_refuses(operation, header, tensor, message):
    async with Job(servers=1, workers=1) as job:
        (worker,) = job.workers
        await init(job, [np.zeros(shape, np.float32) for shape in SHAPES])
        await worker.init(np.zeros(2), key="double")
        with pytest.raises((Refused, ValueError, MXNetError), match=message):
            await ask(worker, operation, header, tensor)
        one = np.ones(82, np.float32)
        _, (values,) = await ask(worker, "pushpull", {"parts": numbered(1)}, one)  # nothing was done
        np.testing.assert_array_equal(values, one)


async def test_a_repeated_joined_push_is_applied_once():
    async with Job(servers=2, workers=2) as job:
        for home in range(2):
            await job.workers[0].call(home, "set_optimizer", {"optimizer": mx.optimizer.Test().get_config()})
        await init(job, [np.zeros(shape, np.float32) for shape in SHAPES])
        one = np.ones(82, np.float32)
        again = [ask(worker, "pushpull", {"parts": numbered(1)}, one) for worker in job.workers for _ in range(4)]
        for numbers, (values,) in await asyncio.gather(*again):
            assert numbers == [1] * KEYS
            np.testing.assert_array_equal(values, 2 * one)
        numbers, _ = await ask(job.workers[0], "push", {"parts": numbered(1)}, one)
        assert numbers == [1] * KEYS


async def test_a_joined_push_survives_its_server():
    async with Job(servers=2, workers=2) as job:
        for home in range(2):
            await job.workers[0].call(home, "set_optimizer", {"optimizer": mx.optimizer.SGD(momentum=0.9).get_config()})
        await init(job, gradients(100))
        expected = await reference(lambda: mx.optimizer.SGD(momentum=0.9), 4, workers=2)
        for number in range(1, 5):
            if number == 3:
                await job.kill(0)
                job.tell()
            pushes = [
                ask(worker, "pushpull", {"parts": numbered(number)}, flat(gradients(10 * number + worker.rank)))
                for worker in job.workers
            ]
            for _, (values,) in await asyncio.gather(*pushes):
                np.testing.assert_array_equal(values, flat(expected[number - 1]))


async def test_requests_of_a_cancelled_caller_are_dropped():
    async with Job(servers=1, workers=2) as job:
        await init(job, gradients(0))
        for operation, tensor in (("pull", None), ("pushpull", flat(gradients(1)))):
            waiting = asyncio.create_task(ask(job.workers[0], operation, {"parts": numbered(1)}, tensor))
            slots = job.servers[0].core.state.slots.values()
            while not all(slot.pulls for slot in slots):
                await asyncio.sleep(0)
            waiting.cancel()
            while any(slot.pulls or slot.pushes for slot in slots):
                await asyncio.sleep(0)
        _, (values,) = await ask(job.workers[1], "pushpull", {"parts": numbered(1)}, flat(gradients(2)))
        np.testing.assert_array_equal(values, flat(gradients(1)) + flat(gradients(2)))  # the pushed gradient stays


async def test_asynchronous_stores_take_joined_requests():
    async with Job(servers=1, workers=2) as job:
        await job.workers[0].call(0, "open", {"mode": "async"})
        await init(job, [np.zeros(shape, np.float32) for shape in SHAPES])
        one = np.ones(82, np.float32)
        with pytest.raises(Refused, match="call set_optimizer first"):
            await ask(job.workers[0], "push", {"parts": numbered(1)}, one)
        await use(job, mx.optimizer.Test())
        for number in (1, 2):
            await ask(job.workers[0], "push", {"parts": numbered(number)}, one)
        _, (values,) = await ask(job.workers[1], "pushpull", {"parts": numbered(1)}, one)
        np.testing.assert_array_equal(values, 3 * one)


def steps_sent():
    """Return two updates with adjacent sums, as another server gets them."""
    base = np.arange(6, dtype=np.float32)
    marks = (("worker0:1", 3), ("worker1:1", 3))
    merged = [(base, 0, 4, (2, 2)), (base, 4, 6, (2,))]
    steps = [p.PartStep("update", 7 + i, merged=each, marks=marks) for i, each in enumerate(merged)]
    return p.StepsSent(4, [p.Part("a", 0, 1), p.Part(9, 2, 1)], [1, 2], steps)


def test_many_steps_are_sent_with_one_tensor():
    sent = steps_sent()
    header, tensors = wire.pack(sent)
    assert len(tensors) == 1 and np.shares_memory(tensors[0].array(), sent.steps[0].merged[0])
    message = wire.unpack(header, tensors)
    assert (message.epoch, message.parts, message.terms) == (sent.epoch, sent.parts, sent.terms)
    for ours, theirs in zip(sent.steps, message.steps, strict=True):
        assert ours._replace(merged=None) == theirs._replace(merged=None)
        np.testing.assert_array_equal(as_array(ours.merged), as_array(theirs.merged))


def test_a_step_of_an_unknown_kind_is_refused():
    sent = p.StepSent(1, p.Part("a", 0, 1), 1, p.PartStep("rest", 2))
    header, tensors = wire.pack(sent)
    assert wire.unpack(header, tensors) == sent
    header["step"][0] = "nonsense"
    with pytest.raises(WireError, match="unknown step 'nonsense'"):
        wire.unpack(header, tensors)


@pytest.mark.parametrize("states", [False, True])
def test_a_step_carries_an_array_or_states(states):
    merged = store.States(b"states") if states else np.arange(3, dtype=np.float32)
    sent = p.StepSent(1, p.Part("a", 0, 1), 1, p.PartStep("load" if states else "update", 2, merged=merged))
    message = wire.unpack(*wire.pack(sent)).step
    assert type(message.merged) is type(merged)
    assert message._replace(merged=None) == sent.step._replace(merged=None)
    np.testing.assert_array_equal(np.frombuffer(message.merged, np.uint8), np.frombuffer(merged, np.uint8))


def test_a_step_carries_rows():
    merged = RowSparseGradient(np.array([1, 4]), np.arange(6, dtype=np.float16).reshape(2, 3), (5, 3))
    sent = p.StepSent(1, p.Part("a", 0, 1), 1, p.PartStep("update", 2, merged=merged))
    header, tensors = wire.pack(sent)
    assert sum(tensor.data.nbytes for tensor in tensors) == 2 * 8 + 6 * 2
    message = wire.unpack(header, tensors).step.merged
    assert (message.shape, message.rows.dtype) == ((5, 3), np.float16)
    np.testing.assert_array_equal(message.dense(), merged.dense())
    for damaged in ([[3, 3], "float16"], [[5, 3], "nonsense"], [[5], "float16"], [[-1, 3], "float16"], 3):
        with pytest.raises(WireError):
            wire.unpack({**header, "rows": damaged}, tensors)


DAMAGED = {
    "no marks": lambda header: header.update(marks=[]),
    "a part without a shape": lambda header: header["parts"][0].pop(),
    "too few elements": lambda header: header["parts"].pop(),
    "an invalid shape": lambda header: header["parts"][0].__setitem__(6, [-2, -2]),
    "an invalid part": lambda header: header["parts"][1].__setitem__(1, "x"),
    "an invalid term": lambda header: header["parts"][1].__setitem__(3, -1),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_steps_are_refused(damage):
    header, tensors = wire.pack(steps_sent())
    DAMAGED[damage](header)
    with pytest.raises(WireError):
        wire.unpack(header, tensors)
