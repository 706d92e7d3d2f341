"""Training that was killed resumes exactly: in separate processes, killed at random batches."""

import asyncio
import hashlib
import os
import random
import signal
import struct
import subprocess
import sys
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowmx as mx
from flowmx.checkpoint import Checkpoint, CheckpointError, Checkpoints, Place, attributes, content, files, generators
from flowmx.comm.launch.job import Launcher, Plan
from flowmx.kvstore.worker.checkpoint_agreement import newest_common
from flowmx.module.fit_checkpoints import FitCheckpoints
from flowmx.serialization import params
from tests import resuming
from tests.fixtures import record_buckets
from tests.seeding import seed_all

ROOT = Path(__file__).parent.parent.parent


def last_lines(path):
    """Return the last line of each batch in a log, by batch."""
    by_batch = {}
    for line in Path(path).read_text().splitlines():
        words = line.split()
        by_batch[tuple(words[:2]) if words[0] != "end" else "end"] = words
    return by_batch


def run_until_killed(program, folder, log, kill):
    """Run a program in a separate process until it ends or is killed; return its status."""
    command = [sys.executable, "-m", "tests.resuming", program, str(folder), str(log), *([kill] if kill else [])]
    return subprocess.run(command, cwd=ROOT, timeout=120, check=False).returncode


def random_place(program):
    draw = random.Random(f"{program} {random.SystemRandom().random()}")
    return f"{draw.randrange(resuming.EPOCHS)}.{draw.randrange(1, 8)}"


@pytest.mark.parametrize("program", ["module", pytest.param("devices", marks=pytest.mark.soak), "block"])
def test_killed_training_resumes_bit_for_bit(program, tmp_path):
    folder, log = tmp_path / "run", tmp_path / "log"
    places = sorted([random_place(program), f"writing.{random.randrange(100, 2000)}"])
    for place in places:
        assert run_until_killed(program, folder, log, place) in (-signal.SIGKILL, 0), places
    assert run_until_killed(program, folder, log, None) == 0, places
    # In a separate process too: automatic layer names depend on the number of earlier layers.
    assert run_until_killed(program, "-", tmp_path / "whole", None) == 0
    assert last_lines(log) == last_lines(tmp_path / "whole"), places


async def run_job(program, folder, log, kill=None):
    """Run a program as a job of two workers until it ends or is killed; return its status and its messages."""
    command = [sys.executable, "-m", "tests.resuming", program, str(folder), str(log), *([kill] if kill else [])]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_", "DMLC_"))}
    environ = {**environment, "PYTHONPATH": str(ROOT), "FLOWMX_KVSTORE_HEARTBEAT": "0.2"}
    messages = []
    launcher = Launcher(Plan(command, 2, 2, "stop", environ=environ), lambda name, line: messages.append((name, line)))
    return await launcher.run(), messages


@pytest.mark.parametrize("program", ["job_module", pytest.param("job_block", marks=pytest.mark.soak)])
async def test_a_killed_job_of_two_nodes_resumes_bit_for_bit(program, tmp_path):
    folder, log, whole = tmp_path / "run", tmp_path / "log", tmp_path / "whole"
    for kill in (f"{random.randrange(2)}:1.{random.randrange(1, 3)}", "all:2.1"):
        status, messages = await run_job(program, folder, log, kill)
        assert status != 0, messages
    status, messages = await run_job(program, folder, log)
    assert status == 0, messages
    status, messages = await run_job(program, "-", whole)
    assert status == 0, messages
    for rank in range(2):
        assert last_lines(f"{log}-{rank}") == last_lines(f"{whole}-{rank}")


# -- in one process: stopped by an error, resumed by a new module ------------------------------------------


class Stopped(Exception):
    """Simulates a kill."""


def stop_at(*place):
    def callback(param):
        if (param.epoch, param.nbatch) == place:
            raise Stopped

    return callback


def sequential():
    first = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="fc1")
    second = mx.sym.Dropout(mx.sym.Variable("middle"), p=0.3)
    second = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(second, num_hidden=4, name="fc2"), name="softmax")
    chain = mx.mod.SequentialModule()
    chain.add(mx.mod.Module(first, label_names=[]))
    return chain.add(mx.mod.Module(second, data_names=["middle"]), take_labels=True, auto_wiring=True), resuming.data()


def bucketing():
    cell = mx.rnn.SequentialRNNCell()
    cell.add(mx.rnn.LSTMCell(record_buckets.UNITS, prefix="l0_"))
    cell.add(mx.rnn.DropoutCell(0.3))
    draw = np.random.default_rng(4)
    sentences = [draw.integers(0, record_buckets.WORDS, draw.integers(2, 6)).tolist() for _ in range(60)]
    batches = mx.rnn.BucketSentenceIter(sentences, 4, buckets=[3, 5], invalid_label=0)
    return mx.mod.BucketingModule(record_buckets.language_model(mx, cell), batches.default_bucket_key), batches


def plain():
    return mx.mod.Module(resuming.network()), resuming.data()


async def train_module(kind, folder=None, stop=None, optimizer="sgd", epochs=2, **more):
    """Train a module; return its parameters and the metric's value."""
    module, batches = kind()
    metric = mx.metric.create("acc" if kind is not bucketing else mx.metric.Perplexity(None))
    callbacks = [] if stop is None else [stop_at(*stop)]
    saved = {} if folder is None else {"checkpoint": Checkpoints(folder, every=2)}
    await module.fit(
        batches,
        num_epoch=epochs,
        eval_metric=metric,
        optimizer=optimizer,
        batch_end_callback=callbacks,
        **saved,
        **more,
    )
    args, aux = module.get_params()
    return {name: (await array).asnumpy() for name, array in (args | aux).items()}, metric.get_global()


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [
        (sequential, "sgd"),
        (bucketing, "adam"),
        (plain, "nadam"),
        (plain, "sgld"),
        pytest.param(plain, "lbsgd", marks=pytest.mark.soak),
        pytest.param(plain, "ftml", marks=pytest.mark.soak),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
async def test_every_kind_of_module_resumes_bit_for_bit(kind, optimizer, tmp_path):
    seed_all(3)
    expected = await train_module(kind, optimizer=optimizer)
    seed_all(3)
    for stop in ((0, 3), (1, 4)):
        with pytest.raises(Stopped):
            await train_module(kind, tmp_path / "run", stop, optimizer)
        seed_all(99)  # the checkpoint replaces this state
    actual = await train_module(kind, tmp_path / "run", None, optimizer)
    assert actual[1] == expected[1]
    for name, array in expected[0].items():
        assert np.array_equal(actual[0][name], array), name


@pytest.mark.parametrize("left_out", ["generators.set_state", "FitCheckpoints.set_optimizers", "data.set_state"])
async def test_state_missing_from_a_checkpoint_is_detected(left_out, tmp_path, monkeypatch):
    async def nothing(*_):
        pass

    owner, name = left_out.split(".")
    replaced = {"generators": generators, "FitCheckpoints": FitCheckpoints, "data": mx.io.NDArrayIter}[owner]
    seed_all(3)
    expected, _ = await train_module(sequential, optimizer="adam")
    seed_all(3)
    with pytest.raises(Stopped):
        await train_module(sequential, tmp_path / "run", (0, 3), "adam")
    seed_all(99)
    monkeypatch.setattr(replaced, name, nothing if owner == "FitCheckpoints" else lambda *_: None)
    actual, _ = await train_module(sequential, tmp_path / "run", None, "adam")
    assert not all(np.array_equal(actual[each], array) for each, array in expected.items())


async def test_completed_training_is_not_repeated(tmp_path):
    actual = await train_module(plain, tmp_path / "run")
    again = await train_module(plain, tmp_path / "run", stop=(0, 0))  # no batch is reached
    more = await train_module(plain, tmp_path / "run", epochs=3)
    assert all(np.array_equal(array, again[0][name]) for name, array in actual[0].items())
    assert not np.array_equal(more[0]["fc_weight"], actual[0]["fc_weight"])


async def test_changes_by_callbacks_survive_a_resume(tmp_path):
    epochs = []

    def slower(param):
        module = param.locals["self"]
        epochs.append(module._optimizer.lr)
        if (param.epoch, param.nbatch) == (0, 1):
            module._optimizer.lr = 0.001
        if (param.epoch, param.nbatch) == (0, 2) and len(epochs) == 3:
            raise Stopped

    for stopped in (True, False):
        network, batches = plain()
        arguments = {"num_epoch": 1, "batch_end_callback": slower, "checkpoint": Checkpoints(tmp_path / "run", every=2)}
        with pytest.raises(Stopped) if stopped else mx.engine.using():
            await network.fit(batches, **arguments)
    assert set(epochs[3:]) == {0.001}


async def check_refused(error, message, kind=plain, folder=None, optimizer="sgd", **more):
    with pytest.raises(error, match=message):
        await train_module(kind, folder, None, optimizer, **more)


def other_network():
    out = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=5, name="fc")
    return mx.mod.Module(mx.sym.SoftmaxOutput(out, name="softmax")), resuming.data()


def without_state():
    module, batches = plain()

    class Plain:
        provide_data, provide_label, batch_size = batches.provide_data, batches.provide_label, batches.batch_size

    return module, Plain()


async def test_refuses_runs_that_cannot_resume(tmp_path):
    run = tmp_path / "run"
    await train_module(plain, run, epochs=1)
    await check_refused(
        FileExistsError, "holds checkpoints of an earlier training: pass resume=True", folder=run, resume=False
    )
    await check_refused(CheckpointError, "belongs to another network", other_network, run)
    await check_refused(CheckpointError, "with the optimizer 'sgd', but this is 'adam'", folder=run, optimizer="adam")
    await check_refused(TypeError, "train_data is a Plain without a position", without_state, run)
    (tmp_path / "job" / "worker-0").mkdir(parents=True)
    await check_refused(CheckpointError, "of a job of several workers, but this job has one", folder=tmp_path / "job")


# -- files -----------------------------------------------------------------------------------------------------


def make_checkpoint(epoch=0, batch=0):
    """Return a small checkpoint with contents of each kind."""
    arrays = {"weight": np.arange(6.0, dtype=np.float32).reshape(2, 3), "none": np.zeros((0, 2), np.float16)}
    return Checkpoint(Place(epoch, batch), arrays, {"states": b"123"}, {"big": 2**200, "pair": (1, [2.5, None])}, 2)


def test_a_checkpoint_survives_a_round_trip():
    checkpoint = make_checkpoint(3, 4)
    checkpoint.content = {
        **checkpoint.content,
        "bits": np.arange(4, dtype=np.uint64),
        "number": np.float32(2.5),
        7: "seven",
    }
    loaded = files.loads(b"".join(files.dumps(checkpoint)))
    assert (loaded.place, loaded.blobs, loaded.workers) == (Place(3, 4), {"states": b"123"}, 2)
    for name, array in checkpoint.arrays.items():
        assert loaded.arrays[name].dtype == array.dtype
        assert np.array_equal(loaded.arrays[name], array)
    bits = loaded.content.pop("bits")
    assert np.array_equal(bits, np.arange(4))
    assert bits.dtype == np.uint64
    assert loaded.content == {"big": 2**200, "pair": (1, [2.5, None]), "number": np.float32(2.5), 7: "seven"}
    with pytest.raises(TypeError, match="cannot hold <object"):
        content.pack({"a": object()})


def test_a_torn_or_changed_file_is_never_read():
    data = b"".join(files.dumps(make_checkpoint()))
    for length in range(len(data)):
        with pytest.raises(CheckpointError):
            files.loads(data[:length])
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= 1
        with pytest.raises(CheckpointError):
            files.loads(bytes(changed))


def file_of_version_1(header):
    """Return a file of format version 1 with this header, valid or not, and a correct digest."""
    header = header if isinstance(header, bytes) else msgpack.packb(header)
    data = struct.pack("<8sIQ", b"FLOWMXCP", 1, len(header)) + header + params.dumps([])
    return data + hashlib.blake2b(data, digest_size=32).digest()


def file_of_version_2(header, data=b""):
    """Return a file of format version 2 with this header, valid or not, and a correct digest."""
    header = header if isinstance(header, bytes) else msgpack.packb(header)
    start = struct.pack("<8sIQ", b"FLOWMXCP", 2, len(header)) + header
    return start + hashlib.blake2b(start, digest_size=16).digest() + data


def nest(depth):
    """Return a list in `depth` msgpack extensions."""
    raw = b"\x90"
    for _ in range(depth):
        raw = msgpack.packb(msgpack.ExtType(2, b"\x91" + raw))
    return raw


VALID_HEADER = {
    "place": [0, 3],
    "workers": 1,
    "content": {},
    "arrays": [],
    "blobs": [],
    "lengths": [len(params.dumps([]))],
}
INVALID_HEADERS = {
    "nested extensions": b"\x81\xa1a" + nest(20_000),
    "a million lists": b"\x81\xa1a\xdd" + struct.pack(">I", 1_000_000) + b"\x90" * 1_000_000,
    "no header": b"",
    "no map": b"\x90",
    "no fields": {},
    "no place": {**VALID_HEADER, "place": "here"},
    "a part before the file": {**VALID_HEADER, "lengths": [-1]},
    "parts behind the file": {**VALID_HEADER, "lengths": [2**63]},
    "names without arrays": {**VALID_HEADER, "arrays": ["weight"]},
    "an unknown extension": {**VALID_HEADER, "content": {"a": msgpack.ExtType(9, b"1")}},
    "an array of objects": {**VALID_HEADER, "content": {"a": msgpack.ExtType(3, msgpack.packb(["|O", [1], bytes(8)]))}},
    "an array of arrays": {
        **VALID_HEADER,
        "content": {"a": msgpack.ExtType(3, msgpack.packb(["(99999999,)f4", [0], b""]))},
    },
}


VALID_HEADER_2 = {"place": [0, 3], "workers": 1, "content": {}, "arrays": [], "blobs": []}
INVALID_HEADERS_2 = {
    name: header
    for name, header in INVALID_HEADERS.items()
    if isinstance(header, bytes) or "extension" in name or header == {}
} | {
    "no place now": {**VALID_HEADER_2, "place": "here"},
    "a blob before the file": {**VALID_HEADER_2, "blobs": [["a", [[-1, b""]]]]},
    "a blob behind the file": {**VALID_HEADER_2, "blobs": [["a", [[2**63, b""]]]]},
    "an array behind the file": {**VALID_HEADER_2, "arrays": [["a", "float32", [2**40, 2**40], b""]]},
    "an array of negative length": {**VALID_HEADER_2, "arrays": [["a", "float32", [-1, -1], b""]]},
    "an unknown dtype": {**VALID_HEADER_2, "arrays": [["a", "object", [1], b""]]},
}


@pytest.mark.parametrize(
    "data",
    [*map(file_of_version_1, INVALID_HEADERS.values()), *map(file_of_version_2, INVALID_HEADERS_2.values())],
    ids=[*INVALID_HEADERS, *(f"{name}, 2" for name in INVALID_HEADERS_2)],
)
def test_an_invalid_checkpoint_is_skipped_for_the_previous_one(data, tmp_path, caplog):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(make_checkpoint(0, 2))
    checkpoints.path(Place(0, 3)).write_bytes(data)
    assert checkpoints.newest().place == Place(0, 2)
    assert "epoch-0000-batch-000003.checkpoint" in caplog.text
    assert "an earlier checkpoint is used" in caplog.text


def test_both_versions_are_read():
    assert (
        files.loads(file_of_version_1(VALID_HEADER)).place
        == files.loads(file_of_version_2(VALID_HEADER_2)).place
        == Place(0, 3)
    )
    first = struct.pack("<8sIQ", b"FLOWMXCP", 1, 0)
    for length in range(len(first)):
        with pytest.raises(CheckpointError):
            files.loads(first[:length])
    with pytest.raises(CheckpointError, match="of format version 3, expected 2: a newer flowmx"):
        files.loads(struct.pack("<8sIQ", b"FLOWMXCP", 3, 0))


def test_a_changed_block_of_a_large_array_is_noticed():
    big = np.random.default_rng(0).integers(0, 255, 3 * 32768 + 5, dtype=np.uint8)
    checkpoint = Checkpoint(Place(0, 0), {"w": big}, {"states": [b"12", bytes(40_000)]})
    data = b"".join(files.dumps(checkpoint))
    assert files.loads(data).blobs == {"states": b"12" + bytes(40_000)}
    start = data.index(big.tobytes())
    swapped = bytearray(data)
    swapped[start : start + 65536] = data[start + 32768 : start + 65536] + data[start : start + 32768]
    for index in (start, start + 40_000, start + big.size - 1, len(data) - 1):
        changed = bytearray(data)
        changed[index] ^= 128
        with pytest.raises(CheckpointError, match="is damaged"):
            files.loads(bytes(changed))
    with pytest.raises(CheckpointError, match="is damaged"):
        files.loads(bytes(swapped))


async def agree_among(*workers):
    """Return the checkpoint from which each worker resumes; `workers` are their folders."""
    places_of_workers, barrier = [[] for _ in workers], asyncio.Barrier(len(workers))

    async def agree(rank, places):
        places_of_workers[rank] = places
        await barrier.wait()
        common = set.intersection(*map(set, places_of_workers))
        await barrier.wait()
        return max(common, default=None)

    return await asyncio.gather(
        *(each.newest_common(lambda places, rank=rank: agree(rank, places)) for rank, each in enumerate(workers))
    )


async def test_workers_agree_on_the_newest_checkpoint_complete_on_all(tmp_path):
    workers = [Checkpoints(tmp_path / str(rank), keep=4) for rank in range(2)]
    for batch in (1, 2, 3, 4):
        for each in workers:
            each.write(make_checkpoint(0, batch))
    workers[0].path(Place(0, 4)).unlink()
    path = workers[1].path(Place(0, 3))  # the length stays: only a reader of the whole file notices
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert [result.place for result in await agree_among(*workers)] == [Place(0, 2)] * 2
    for each in (Place(0, 1), Place(0, 2), Place(0, 3)):
        workers[1].path(each).unlink()
    with pytest.raises(CheckpointError, match="but another worker has none of them"):
        await agree_among(*workers)


def test_unreadable_checkpoints_are_not_written():
    deep = []
    for _ in range(100):
        deep = (deep,)
    with pytest.raises(ValueError, match="nested containers"):
        files.dumps(Checkpoint(Place(0, 0), content={"deep": deep}))


def test_the_newest_complete_checkpoint_is_read(tmp_path, caplog):
    checkpoints = Checkpoints(tmp_path, keep=3)
    assert checkpoints.newest() is None
    for batch in (1, 2, 3):
        checkpoints.write(make_checkpoint(0, batch))
    path = checkpoints.path(Place(0, 3))
    path.write_bytes(path.read_bytes()[:-40])
    (tmp_path / ".flowmx-left.tmp").touch()
    assert checkpoints.newest().place == Place(0, 2)
    assert "is damaged" in caplog.text
    assert checkpoints.intact() == [Place(0, 2), Place(0, 1)]
    assert not (tmp_path / ".flowmx-left.tmp").exists()


def test_the_last_checkpoints_and_two_epoch_starts_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, every=10, keep=2)
    for epoch in range(4):
        for batch in (0, 10, 20):
            checkpoints.write(make_checkpoint(epoch, batch))
    assert checkpoints.places() == [Place(2, 0), Place(3, 0), Place(3, 10), Place(3, 20)]
    assert [checkpoints.is_due(batches) for batches in (9, 10, 20)] == [False, True, True]
    for arguments in ({"every": 0}, {"keep": 1}):
        with pytest.raises(ValueError, match="expected"):
            Checkpoints(tmp_path, **arguments)


METRICS = [["acc", "ce"], "f1", "mcc", "pearsonr", mx.metric.Perplexity(None), "pcc", ["f1", ["mse", "pearsonr"]]]


@pytest.mark.parametrize("metric", METRICS, ids=str)
def test_a_metric_resumes_its_counts(metric):
    draw = np.random.default_rng(0)

    def batch():
        labels = mx.nd.array(draw.integers(0, 2, 8))
        regress = mx.nd.array(draw.random(8))
        return ([labels], [regress]) if "pearsonr" in str(metric) else ([labels], [mx.nd.array(draw.random((8, 2)))])

    first, second = mx.metric.create(metric), mx.metric.create(metric)
    if "mse" in str(metric):
        first, second = (mx.metric.create(["mse", "pearsonr"]) for _ in range(2))
    for _ in range(3):
        first.update(*batch())
    state = content.unpack(content.pack(attributes.state(first)))
    second.reset()
    attributes.set_state(second, state)
    one_more = batch()
    for each in (first, second):
        each.update(*one_more)
    assert first.get() == second.get()
    assert first.get_global() == second.get_global()


# -- what workers agree on -------------------------------------------------------------------------------------


class FakeJob:
    """Positions and barriers of several workers."""

    def __init__(self, workers):
        self.workers, self.greatest, self.rounds = workers, [], {}

    def session(self):
        return FakeSession(self)


class FakeSession:
    def __init__(self, job):
        self._job = job
        self.node = self

    def is_past(self, name):
        return False

    async def position(self, reached=None):
        await asyncio.sleep(0)
        self._job.greatest = max(self._job.greatest, reached or [])
        return self._job.greatest

    async def barrier(self, name):
        waiting, event = self._job.rounds.setdefault(name, ([], asyncio.Event()))
        waiting.append(self)
        if len(waiting) == self._job.workers:
            event.set()
        await event.wait()


PLACES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=6, unique=True)


@given(st.lists(PLACES, min_size=2, max_size=4))
def test_workers_agree_on_the_newest_common_place(places_of_workers):
    async def agree():
        job = FakeJob(len(places_of_workers))
        sessions = [job.session() for _ in places_of_workers]
        answers = [
            newest_common(each, sorted(places, reverse=True), 0, 1)
            for each, places in zip(sessions, places_of_workers, strict=True)
        ]
        return await asyncio.wait_for(asyncio.gather(*answers), 10)

    common = set.intersection(*map(set, places_of_workers))
    assert asyncio.run(agree()) == [max(common, default=None)] * len(places_of_workers)


async def test_a_late_worker_uses_its_own_checkpoint():
    job = FakeJob(2)
    job.greatest = [1, 3, 17]
    assert await newest_common(job.session(), [(1, 2), (0, 0)], 0, 1) == (1, 2)
    assert await newest_common(job.session(), [], 0, 1) is None


async def test_a_checkpoint_of_other_names_is_refused(tmp_path):
    def module(name):
        fc = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name=name)
        return mx.mod.Module(mx.sym.SoftmaxOutput(fc, name="softmax"))

    def data():
        return mx.io.NDArrayIter(np.ones((8, 3), np.float32), np.zeros(8, np.float32), 4)

    await module("one").fit(data(), num_epoch=1, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="one_bias, one_weight, other_bias, other_weight are in only"):
        await module("other").fit(data(), num_epoch=2, checkpoint=tmp_path, resume=True)
