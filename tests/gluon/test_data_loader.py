"""DataLoader: the same batches for any kind of worker, resumable at any batch, without leaks."""

import asyncio
import gc
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon import data
from flowmx.gluon.data.vision import transforms
from flowmx.gluon.data.workers import template
from tests.seeding import seed_all

WORKERS = [{}, {"num_workers": 2, "thread_pool": True}, {"num_workers": 1}]
IDS = ["none", "threads", "processes"]
LINUX = sys.platform == "linux"
pytestmark = pytest.mark.skipif(not hasattr(socket, "send_fds"), reason="worker processes need Unix sockets")


class Squares(data.Dataset):
    """Samples: an array and its index."""

    def __init__(self, length=30, shape=(2,)):
        self.length = length
        self.shape = shape

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return mx.nd.full(self.shape, index * index), index


class RandomNumbers(Squares):
    """The index, and numbers from every random stream."""

    def __getitem__(self, index):
        drawn = mx.nd.random.uniform(shape=(2,)).asnumpy().tolist()
        return [index, random.random(), np.random.random(), *drawn]


class RaisesError(Squares):
    """One sample raises an error."""

    def __getitem__(self, index):
        if index == 7:
            raise self.error(index)
        return super().__getitem__(index)

    def error(self, index):
        return ZeroDivisionError(f"planted at {index}")


class UnpicklableError(Exception):
    """An exception that cannot be pickled."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class RaisesUnpicklable(RaisesError):
    def error(self, index):
        return UnpicklableError(1, 2)


class RaisesStopIteration(RaisesError):
    def error(self, index):
        return StopIteration()


class EndsProcess(Squares):
    """One sample ends the process that makes it."""

    def __init__(self, signal):
        super().__init__()
        self.signal = signal

    def __getitem__(self, index):
        if index == 7:
            if self.signal:
                os.kill(os.getpid(), self.signal)
            os._exit(3)
        return super().__getitem__(index)


class Stuck(Squares):
    """One sample blocks forever."""

    def __getitem__(self, index):
        if index == 7:
            threading.Event().wait()
        return super().__getitem__(index)


class Broken(Squares):
    """A data set that cannot be unpickled."""

    def __setstate__(self, state):
        raise FileNotFoundError("the file is on another machine")


class Augmented(Squares):
    def __init__(self):
        super().__init__(12)
        self.change = transforms.Compose([
            transforms.RandomResizedCrop(8), transforms.RandomFlipLeftRight(), transforms.RandomBrightness(0.5),
            transforms.RandomColorJitter(0.2, 0.2, 0.2, 0.2), transforms.RandomLighting(0.1), transforms.ToTensor(),
        ])  # fmt: skip
        self.images = np.random.default_rng(0).integers(0, 255, (12, 16, 20, 3), np.uint8)

    def __getitem__(self, index):
        return self.change(mx.nd.array(self.images[index], dtype="uint8"))


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def numbers(batches):
    return [batch[1].asnumpy().tolist() for batch in batches]


def batchify_to_dict(batch):
    return {"sum": sum(index for _, index in batch), "all": np.stack([array.asnumpy() for array, _ in batch], 1)}


@pytest.mark.parametrize("workers", WORKERS, ids=IDS)
def test_yields_all_batches_in_order(workers):
    loader = data.DataLoader(Squares(), 4, **workers)
    assert len(loader) == 8
    for _ in range(2):
        batches = list(loader)
        assert numbers(batches) == [list(range(i, min(i + 4, 30))) for i in range(0, 30, 4)]
        assert batches[2][0].asnumpy()[:, 0].tolist() == [64, 81, 100, 121]
        assert isinstance(batches[0], list) and batches[0][1].dtype is np.int64
    epoch = iter(loader)
    assert len(epoch) == 8 and epoch.next()[1].asnumpy()[0] == 0


@pytest.mark.parametrize("workers", WORKERS, ids=IDS)
def test_batches_of_any_type_are_returned(workers):
    (batch,) = data.DataLoader(Squares(5), 5, batchify_fn=batchify_to_dict, **workers)
    assert batch["sum"] == 10 and batch["all"].tolist() == [[0, 1, 4, 9, 16]] * 2
    (batch,) = data.DataLoader(Squares(3), 3, batchify_fn=data.batchify.AsList(), **workers)
    assert [index for _, index in batch] == [0, 1, 2] and batch[2][0].asnumpy().tolist() == [4, 4]
    arrays = np.arange(12.0).reshape(6, 2)
    assert [batch.asnumpy().tolist() for batch in data.DataLoader(arrays, 3, **workers)] == arrays.reshape(
        2, 3, 2
    ).tolist()
    pinned = next(iter(data.DataLoader(Squares(3), 3, pin_memory=True, **workers)))
    assert pinned[0].context == mx.cpu_pinned(0)


@pytest.mark.parametrize("workers", WORKERS, ids=IDS)
async def test_in_a_coroutine(workers):
    loader = data.DataLoader(Squares(), 7, **workers)
    with mx.engine.using(blocking_in_loop="error"):
        labels = []
        async for _, label in loader:
            await label
            labels += label.asnumpy().tolist()
    assert labels == list(range(30))
    async for _ in loader:
        break
    assert len([batch async for batch in loader]) == 5


async def test_loops_in_many_tasks_do_not_disturb_each_other():
    loader = data.DataLoader(Squares(), 4, num_workers=2)

    async def run():
        return [(await batch[1]).asnumpy().tolist() async for batch in loader]

    results = await asyncio.gather(*(run() for _ in range(5)))
    assert all(flat(batches) == list(range(30)) for batches in results)


def test_big_batches_share_memory_that_is_reused():
    loader = data.DataLoader(Squares(40, (64, 1024)), 4, num_workers=1)
    batches = []
    for epoch in range(3):
        for position, batch in enumerate(loader):
            if position % 3 == epoch:
                batches.append((position, batch))
    for position, (array, _) in batches:
        assert (array.asnumpy()[:, 0, 0] == np.arange(4 * position, 4 * position + 4) ** 2).all()
    batches[0][1][0][:] = 5  # the array is writable
    assert (batches[0][1][0] + 1).asnumpy().max() == 6
    blocks = loader._pool._threads[0].worker.blocks
    assert len(blocks._all) <= len(batches) + 8


def test_more_batches_may_be_held_than_there_are_descriptors():
    batches = list(data.DataLoader(Squares(300, (200, 50)), 1, num_workers=1))
    assert [batch[0].asnumpy()[0, 0, 0] for batch in batches] == [i * i for i in range(300)]
    if LINUX:
        assert len([*Path("/proc/self/fd").iterdir()]) < 150


# -- random numbers ----------------------------------------------------------------------------------------


def test_the_seeds_determine_the_batches_for_any_workers():
    samples, orders = [], []
    for workers in ({}, {"num_workers": 2}, {"num_workers": 1, "prefetch": 1}, {}):
        seed_all(11)
        loader = data.DataLoader(RandomNumbers(12), 5, shuffle=True, last_batch="rollover", **workers)
        samples.append([[batch.asnumpy().tolist() for batch in loader] for _ in range(3)])
        seed_all(11)
        plain = data.DataLoader(Squares(12), 5, shuffle=True, last_batch="rollover", **workers)
        orders.append([numbers(plain) for _ in range(3)])
    assert orders[0] == orders[1] == orders[2]
    assert samples[0] == samples[3] and samples[1] == samples[2]  # they continue the program's streams
    assert len({tuple(row) for epoch in samples[0] for batch in epoch for row in batch}) == 35
    seed_all(12)
    assert samples[0][0] != [batch.asnumpy().tolist() for batch in loader]


@pytest.mark.parametrize("workers", WORKERS, ids=IDS)
def test_augmentation_follows_the_seed(workers):
    def run(**options):
        seed_all(5)
        return [batch.asnumpy() for batch in data.DataLoader(Augmented(), 4, **options)]

    for one, other in zip(run(**workers), run(**workers), strict=True):
        assert (one == other).all() and one.std() > 0


def test_workers_do_not_change_random_streams_of_the_program():
    def draw(load):
        mx.random.seed(1), np.random.seed(2), random.seed(3)
        loader = data.DataLoader(RandomNumbers(4), 2, num_workers=1)
        drawn = []
        for _ in range(2):
            drawn += [mx.nd.random.uniform(shape=(1,)).asscalar(), np.random.random(), random.random()]
            if load:
                list(loader)
        return drawn

    assert draw(True) == draw(False)


def test_numpys_seed_is_used_if_no_other_is_set(monkeypatch):
    monkeypatch.setattr("flowmx.devices.generator._new_seed", None)

    def order():
        np.random.seed(4)
        return numbers(data.DataLoader(Squares(), 30, shuffle=True))

    assert order() == order() != numbers(data.DataLoader(Squares(), 30, shuffle=True))


# -- the position in an epoch ------------------------------------------------------------------------------


class Shuffled(data.Sampler):
    """A sampler without a state."""

    def __iter__(self):
        order = list(range(12))
        random.shuffle(order)
        return iter(order)

    def __len__(self):
        return 12


@pytest.mark.parametrize(
    ("workers", "count"), [*((each, count) for each in WORKERS[:2] for count in (0, 1, 3, 5, 8)), (WORKERS[2], 3)]
)
def test_resumes_in_the_middle_of_an_epoch(workers, count):
    def make():
        # Threads would draw from the same generator as the sampler, in random order.
        dataset = Augmented() if workers.get("thread_pool") else RandomNumbers(17)
        return data.DataLoader(dataset, 4, shuffle=True, last_batch="rollover", **workers)

    def rows(batches):
        return [batch.asnumpy().tolist() for batch in batches]

    seed_all(3)
    loader = make()
    batches, state = [], loader.state()
    for _ in range(4):
        for batch in loader:
            batches.append(batch)
            if len(batches) == count:
                state = json.loads(json.dumps(loader.state()))
    seed_all(99)
    other = make()
    other.set_state(state)
    assert other.state() == state
    rest = [batch for _ in range(4) for batch in other]
    assert rows(rest)[: len(batches) - count] == rows(batches)[count:]


def test_the_state_of_an_abandoned_loop():
    seed_all(3)
    loader = data.DataLoader(Squares(), 4, shuffle=True)
    epoch = iter(loader)
    first = [next(epoch)[1].asnumpy().tolist() for _ in range(3)]
    del epoch
    state = loader.state()
    assert state["given"] == 3
    other = data.DataLoader(Squares(), 4, shuffle=True)
    other.set_state(state)
    rest = numbers(other)
    assert sorted(flat(first + rest)) == list(range(30))
    assert numbers(other) == numbers(_at_next_epoch(loader, state))


def _at_next_epoch(loader, state):
    """Restore a state, and complete its epoch; return the loader."""
    loader.set_state(state)
    list(loader)
    return loader


@pytest.mark.parametrize("workers", WORKERS[:2], ids=IDS[:2])
def test_a_sampler_without_a_state_resumes_its_order(workers):
    loader = data.DataLoader(Squares(12), 2, sampler=Shuffled(), **workers)
    epoch = iter(loader)
    first = [next(epoch)[1].asnumpy().tolist() for _ in range(2)]
    state = json.loads(json.dumps(loader.state()))
    rest = numbers(epoch)
    assert sorted(flat(first + rest)) == list(range(12))
    other = data.DataLoader(Squares(12), 2, sampler=Shuffled(), **workers)
    other.set_state(state)
    assert numbers(other) == rest and len(list(other)) == 6
    fresh = data.DataLoader(Squares(12), 2, sampler=Shuffled(), **workers)
    state = fresh.state()
    other.set_state(state)
    assert numbers(fresh) == numbers(other)


def test_refuses_the_state_of_another_loader():
    state = data.DataLoader(Squares(10), 2).state()
    with pytest.raises(ValueError, match="the state has samples = 10, but this iterator has 30"):
        data.DataLoader(Squares(30), 2).set_state(state)


def test_workers_of_a_job_have_shares_of_equal_length():
    mx.random.seed(1)
    shares = [
        flat(numbers(data.DataLoader(Squares(11), 2, shuffle=shuffle, num_parts=3, part_index=part)))
        for shuffle in (False, True)
        for part in range(3)
    ]
    assert {len(share) for share in shares} == {4}
    assert set(flat(shares[:3])) == set(flat(shares[3:])) == set(range(11))


# -- prefetching -------------------------------------------------------------------------------------------


def test_prefetches_by_engine_operations():
    before = mx.engine.stats()["pushed"]
    loader = data.DataLoader(Squares(), 1, num_workers=1, prefetch=3)
    epoch = iter(loader)
    assert mx.engine.stats()["pushed"] - before == 3
    next(epoch)
    assert mx.engine.stats()["pushed"] - before >= 4


def test_auto_reload_starts_the_next_epoch_in_the_background():
    seed_all(6)
    plain = data.DataLoader(Squares(), 10, shuffle=True)
    expected = [numbers(plain) for _ in range(3)]
    seed_all(6)
    loader = data.DataLoader(Squares(), 10, shuffle=True, num_workers=1, thread_pool=True, auto_reload=True)
    epochs = [numbers(loader) for _ in range(2)]
    assert loader._iter is not None
    state = loader.state()
    loader.clean()
    assert loader._iter is None and loader.state() == state
    assert [*epochs, numbers(loader)] == expected


# -- failures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", WORKERS, ids=IDS)
def test_an_error_has_its_trace_and_its_sample(workers):
    loader = data.DataLoader(RaisesError(), 4, **workers)
    epoch = iter(loader)
    assert next(epoch)[1].asnumpy().tolist() == [0, 1, 2, 3]
    with pytest.raises(ZeroDivisionError, match="planted at 7") as caught:
        next(epoch)
    with pytest.raises(StopIteration):
        next(epoch)
    notes = "\n".join(caught.value.__notes__)
    assert "sample 7 of batch 1" in notes
    if "thread_pool" not in workers and workers:
        assert "raised in DataLoader worker" in notes
        assert 'test_data_loader.py", line' in notes and "in __getitem__" in notes
    assert loader.state()["given"] == 1
    assert next(iter(loader))[1].asnumpy().tolist() == [0, 1, 2, 3]


async def test_an_error_in_a_coroutine():
    with pytest.raises(ZeroDivisionError, match="planted at 7"):
        async for _ in data.DataLoader(RaisesError(), 4, num_workers=1):
            pass


@pytest.mark.parametrize("workers", WORKERS[:2], ids=IDS[:2])
def test_an_error_of_batchify(workers):
    with pytest.raises(ValueError, match=r"different shapes, \[\(1,\), \(2,\), \(3,\)\]") as caught:
        list(data.DataLoader(data.SimpleDataset([np.zeros(i) for i in (1, 2, 3)]), 3, **workers))
    assert "batchify_fn of batch 0, with the samples [0, 1, 2]" in "\n".join(caught.value.__notes__)


def test_an_error_that_cannot_be_sent():
    with pytest.raises(mx.gluon.data.DataLoaderWorkerError, match=r"DataLoader worker 0 .*UnpicklableError: 1 and 2"):
        list(data.DataLoader(RaisesUnpicklable(), 8, num_workers=1))


@pytest.mark.parametrize("workers", WORKERS[:2], ids=IDS[:2])
def test_a_stop_iteration_does_not_end_the_epoch(workers):
    with pytest.raises(RuntimeError):
        list(data.DataLoader(RaisesStopIteration(), 4, **workers))


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGKILL, r"was killed by SIGKILL \(usually by the system"),
        (0, "exit code 3"),
    ],
)
def test_a_dead_worker_is_named_and_replaced(number, message):
    loader = data.DataLoader(EndsProcess(number), 4, num_workers=1)
    epoch = iter(loader)
    assert next(epoch)[1].asnumpy().tolist() == [0, 1, 2, 3]
    with pytest.raises(
        data.DataLoaderWorkerError, match=rf"DataLoader worker \d \(pid \d+\) .*{message}.* at batch 1, samples \[4,"
    ):
        next(epoch)
    assert next(iter(loader))[1].asnumpy().tolist() == [0, 1, 2, 3]


def test_a_worker_that_is_killed():
    loader = data.DataLoader(Squares(), 4, num_workers=1)
    assert len(list(loader)) == 8
    os.kill(loader._pool.pids[0], signal.SIGKILL)
    with pytest.raises(data.DataLoaderWorkerError, match="SIGKILL"):
        list(loader)
    assert len(list(loader)) == 8


@pytest.mark.parametrize("workers", WORKERS[1:], ids=IDS[1:])
def test_a_batch_that_takes_too_long(workers):
    loader = data.DataLoader(Stuck(), 4, timeout=1, **workers)
    epoch = iter(loader)
    next(epoch)
    with pytest.raises(data.DataLoaderTimeout, match=r"batch 1.* 1 seconds|1 seconds at batch 1"):
        next(epoch)


def test_a_data_set_that_cannot_be_opened():
    with pytest.raises(FileNotFoundError, match="on another machine") as caught:
        list(data.DataLoader(Broken(), 4, num_workers=1))
    assert "while opening the data set" in "\n".join(caught.value.__notes__)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "batch_size is missing"),
        ({"batch_size": 2, "shuffle": True, "sampler": [1]}, "sampler conflicts with shuffle: pass only sampler"),
        ({"batch_size": 2, "batch_sampler": [[1]]}, "batch_sampler conflicts with batch_size: pass only batch_sampler"),
        ({"batch_size": 2, "timeout": 0}, "timeout is 0"),
        ({"batch_size": 2, "last_batch": "drop"}, "last_batch is 'drop'"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 2, "num_parts": 2, "part_index": 2}, "part_index is 2"),
    ],
)
def test_refuses_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        data.DataLoader(Squares(), **arguments)


def test_threads_load_data_sets_that_cannot_be_pickled():
    changed = Squares(6).transform(lambda array, index: (array, index + 1))
    with pytest.warns(UserWarning, match=r"cannot be sent to worker processes.*lambda"):
        loader = data.DataLoader(changed, 3, num_workers=2)
    assert numbers(loader) == [[1, 2, 3], [4, 5, 6]]


# -- shutdown ----------------------------------------------------------------------------------------------


def run_program(program, *arguments, **options):
    """Run a program; return its result."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments], cwd=Path(__file__).parent.parent.parent,
        capture_output=True, text=True, timeout=100, **options,
    )  # fmt: skip


def resources():
    """Return the number of descriptors, the child processes, and the number of shared blocks that are mapped."""
    gc.collect()
    status = Path("/proc/self/maps").read_text()
    return (
        len([*Path("/proc/self/fd").iterdir()]),
        sorted(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
        status.count("flowmx-batch"),
    )


@pytest.mark.skipif(not LINUX, reason="looks into /proc")
def test_two_hundred_abandoned_loops_leak_nothing():
    loader = data.DataLoader(Squares(40, (64, 256)), 2, num_workers=2)
    for index, _ in enumerate(loader):
        if index == 10:
            break
    before = resources()
    for round_ in range(200):
        for index, _ in enumerate(loader):
            if index == round_ % 7:
                break
    descriptors, children, blocks = resources()
    assert children == before[1]
    assert descriptors <= before[0] + 16 and blocks <= 16  # the blocks that two workers keep for the next batches
    pids = loader._pool.pids
    assert len(list(loader)) == 20
    del loader, _
    descriptors, children, blocks = resources()
    assert not set(map(str, pids)) & set(children) and blocks == 0
    assert descriptors <= before[0] - 2
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("flowmx-loader")]


@pytest.mark.skipif(not LINUX, reason="looks into /proc")
def test_deleted_loaders_leak_nothing():
    list(data.DataLoader(Squares(), 4, num_workers=1))
    before = resources()
    for _ in range(3):
        for _ in data.DataLoader(Squares(40, (64, 256)), 4, num_workers=1):
            break
    del _
    descriptors, children, blocks = resources()
    assert children == before[1] and blocks <= before[2] and descriptors <= before[0]


PROGRAM = """
    import os, sys, signal, threading, time
    import flowmx as mx
    from tests.gluon.test_data_loader import Squares, Stuck
    loader = mx.gluon.data.DataLoader({dataset}, 4, num_workers=2)
    batches = iter(loader)
    next(batches)
    print(*loader._pool.pids, flush=True)
"""


def wait_until_ended(pids):
    """Wait until these processes have ended."""
    for pid in pids:
        while True:
            try:
                os.kill(int(pid), 0)
                state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] if LINUX else "Z"
                if state == "Z" and not LINUX:
                    break
            except (ProcessLookupError, FileNotFoundError):
                break
    return True


@pytest.mark.timeout(60)
@pytest.mark.parametrize("ending", ["raise ValueError('mine')", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_the_workers_of_a_program_end_with_it(ending):
    result = run_program(textwrap.dedent(PROGRAM).format(dataset="Squares()") + ending)
    pids = result.stdout.split()
    assert len(pids) == 2, result.stderr
    assert wait_until_ended(pids)
    assert ("Traceback" in result.stderr) == ("mine" in ending), result.stderr


@pytest.mark.timeout(60)
def test_an_interrupt_ends_all_processes():
    dump = "import faulthandler; faulthandler.dump_traceback_later(20)\n"  # shows where the program hangs
    program = dump + textwrap.dedent(PROGRAM).format(dataset="Stuck()") + "next(batches)"
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=Path(__file__).parent.parent.parent, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        pids = process.stdout.readline().split()
        os.killpg(process.pid, signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            pytest.fail(f"the program hangs:\n{process.communicate()[1]}")
    assert len(pids) == 2 and wait_until_ended(pids)
    assert errors.count("KeyboardInterrupt") == 1 and "DataLoader" not in errors.rpartition("KeyboardInterrupt")[2], (
        errors
    )


# -- the process that forks workers ------------------------------------------------------------------------

forked = pytest.mark.skipif(not template.available, reason="each worker is a separate interpreter here")


class WorkerEnvironment(Squares):
    """Samples with the parent, variable, folder and random number of the worker process."""

    def __getitem__(self, index):
        print(f"sample {index}", flush=True)
        return [index, os.getppid(), os.environ.get("FLOWMX_TEST_MARK", ""), str(Path.cwd()), random.random()]


def parents(loader):
    """Return the processes that forked a loader's workers."""
    return {int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]) for pid in loader._pool.pids}


def load(dataset, workers):
    return next(iter(data.DataLoader(dataset, len(dataset), num_workers=workers, batchify_fn=list)))


@forked
def test_loaders_share_the_process_that_forks_their_workers():
    one, other = (data.DataLoader(Squares(), 4, num_workers=2) for _ in range(2))
    assert len(parents(one) | parents(other)) == 1
    assert os.getpid() not in parents(one)
    assert len(set(one._pool.pids) | set(other._pool.pids)) == 4


@forked
def test_a_worker_has_the_current_variables_folder_and_output(monkeypatch, tmp_path, capfd):
    (first,) = load(WorkerEnvironment(1), 1)
    monkeypatch.setenv("FLOWMX_TEST_MARK", "new")
    monkeypatch.chdir(tmp_path)
    capfd.readouterr()
    (second,) = load(WorkerEnvironment(1), 1)
    assert first[1] == second[1], "another process forked it"
    assert second[2:4] == ["new", str(tmp_path)]
    assert capfd.readouterr().out == "sample 0\n"


@forked
def test_variables_that_libraries_read_at_import_need_another_process(monkeypatch):
    one = data.DataLoader(Squares(), 4, num_workers=1)
    (before,) = parents(one)
    monkeypatch.setenv("MALLOC_TEST_MARK", "1")
    other = data.DataLoader(Squares(), 4, num_workers=1)
    assert parents(other) != {before}
    (pid,) = one._pool.pids
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(data.DataLoaderWorkerError, match="SIGKILL"):
        list(one)
    assert numbers(one) == numbers(other)


@forked
def test_a_killed_template_process_is_replaced():
    loader = data.DataLoader(Squares(), 4, num_workers=1)
    process = template._template.process
    assert parents(loader) == {process.pid}
    process.kill()
    process.wait()
    assert numbers(data.DataLoader(Squares(), 4, num_workers=1)) == numbers(loader)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_the_child_of_a_fork_has_its_own_workers():
    program = textwrap.dedent(PROGRAM).format(dataset="Squares()") + textwrap.dedent("""
        import warnings
        warnings.simplefilter("error", ResourceWarning)
        pid = os.fork()
        if not pid:
            print(len(list(loader)), len(list(batches)), flush=True)
            del loader, batches
            fresh = mx.gluon.data.DataLoader(Squares(), 4, num_workers=1)
            print(len(list(fresh)), flush=True)
            sys.exit(0)
        os.waitpid(pid, 0)
        print(len(list(batches)), flush=True)
    """)
    result = run_program(program)
    lines = result.stdout.splitlines()
    assert lines[1:] == ["8 7", "8", "7"], result
    assert not result.stderr


def test_a_program_needs_no_main_guard(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        import flowmx as mx
        print("begins")
        class Mine(mx.gluon.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, index):
                return index * SCALE
        SCALE = 3
        def largest(batch):
            return max(batch)
        loader = mx.gluon.data.DataLoader(Mine(), 4, num_workers=1, batchify_fn=largest)
        print(list(loader))
        """)
    )
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.splitlines().count("[9, 21]") == 1 and not result.stderr
    result = subprocess.run(
        [sys.executable, "-"], input=script.read_text(), capture_output=True, text=True, timeout=60, check=True
    )
    assert "[9, 21]" in result.stdout and "threads load instead" in result.stderr


def test_worker_processes_are_not_forked_from_the_program():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forks = []
        os.register_at_fork(before=lambda: forks.append(1))
        assert len(list(data.DataLoader(Squares(), 10, num_workers=1))) == 3
    assert not forks
