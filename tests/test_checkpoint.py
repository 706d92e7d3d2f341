"""Training that is killed goes on as if it had never stopped: real processes, killed at random batches."""

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
from flowmx.checkpoint import Checkpoint, CheckpointError, Checkpoints, Place, attributes, content, generators
from flowmx.comm.launch.job import Launcher, Plan
from flowmx.kvstore.worker.agreement import newest_common
from flowmx.module.saving import Saving
from flowmx.serialization import params
from tests import resuming
from tests.fixtures import record_buckets

ROOT = Path(__file__).parent.parent


def lines(path):
    """The last line of each batch in a log, by batch."""
    found = {}
    for line in Path(path).read_text().splitlines():
        words = line.split()
        found[tuple(words[:2]) if words[0] != "end" else "end"] = words
    return found


def killed(program, folder, log, kill):
    """Run a program in a process of its own, until it is killed."""
    command = [sys.executable, "-m", "tests.resuming", program, str(folder), str(log), *([kill] if kill else [])]
    return subprocess.run(command, cwd=ROOT, timeout=120, check=False).returncode


def random_place(program):
    draw = random.Random(f"{program} {random.SystemRandom().random()}")
    return f"{draw.randrange(resuming.EPOCHS)}.{draw.randrange(1, 8)}"


@pytest.mark.parametrize("program", ["module", pytest.param("devices", marks=pytest.mark.soak), "block"])
def test_training_that_is_killed_goes_on_to_the_bit(program, tmp_path):
    folder, log = tmp_path / "run", tmp_path / "log"
    places = sorted([random_place(program), f"writing.{random.randrange(100, 2000)}"])
    for place in places:
        assert killed(program, folder, log, place) in (-signal.SIGKILL, 0), places
    assert killed(program, folder, log, None) == 0, places
    # In a process of its own too: what layers are called depends on how many there were before.
    assert killed(program, "-", tmp_path / "whole", None) == 0
    assert lines(log) == lines(tmp_path / "whole"), places


async def launched(program, folder, log, kill=None):
    """Run a program as a job of two workers, until it ends or is killed; returns the status and what was said."""
    command = [sys.executable, "-m", "tests.resuming", program, str(folder), str(log), *([kill] if kill else [])]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_", "DMLC_"))}
    environ = {**kept, "PYTHONPATH": str(ROOT), "FLOWMX_KVSTORE_HEARTBEAT": "0.2"}
    said = []
    launcher = Launcher(Plan(command, 2, 2, "stop", environ=environ), lambda name, line: said.append((name, line)))
    return await launcher.run(), said


@pytest.mark.parametrize("program", ["job_module", pytest.param("job_block", marks=pytest.mark.soak)])
async def test_a_job_of_two_nodes_that_is_killed_goes_on_to_the_bit(program, tmp_path):
    folder, log, whole = tmp_path / "run", tmp_path / "log", tmp_path / "whole"
    for kill in (f"{random.randrange(2)}:1.{random.randrange(1, 3)}", "all:2.1"):
        status, said = await launched(program, folder, log, kill)
        assert status != 0, said
    status, said = await launched(program, folder, log)
    assert status == 0, said
    status, said = await launched(program, "-", whole)
    assert status == 0, said
    for rank in range(2):
        assert lines(f"{log}-{rank}") == lines(f"{whole}-{rank}")


# -- in one process: stopped by an error, gone on with by a module that is made anew ---------------------------


class Stopped(Exception):
    """Stands for a kill."""


def stop_at(*place):
    def callback(param):
        if (param.epoch, param.nbatch) == place:
            raise Stopped

    return callback


def sequential():
    first = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="fc1")
    second = mx.sym.Dropout(mx.sym.Variable("middle"), p=0.3)
    second = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(second, num_hidden=4, name="fc2"), name="softmax")
    made = mx.mod.SequentialModule()
    made.add(mx.mod.Module(first, label_names=[]))
    return made.add(mx.mod.Module(second, data_names=["middle"]), take_labels=True, auto_wiring=True), resuming.data()


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


async def trained(kind, folder=None, stop=None, optimizer="sgd", epochs=2, **more):
    """The parameters after training, and the metric's value."""
    made, batches = kind()
    metric = mx.metric.create("acc" if kind is not bucketing else mx.metric.Perplexity(None))
    callbacks = [] if stop is None else [stop_at(*stop)]
    saved = {} if folder is None else {"checkpoint": Checkpoints(folder, every=2)}
    await made.fit(
        batches,
        num_epoch=epochs,
        eval_metric=metric,
        optimizer=optimizer,
        batch_end_callback=callbacks,
        **saved,
        **more,
    )
    args, aux = made.get_params()
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
async def test_every_kind_of_module_goes_on_to_the_bit(kind, optimizer, tmp_path):
    mx.random.seed(3)
    wanted = await trained(kind, optimizer=optimizer)
    mx.random.seed(3)
    for stop in ((0, 3), (1, 4)):
        with pytest.raises(Stopped):
            await trained(kind, tmp_path / "run", stop, optimizer)
        mx.random.seed(99)  # what comes later is restored
    found = await trained(kind, tmp_path / "run", None, optimizer)
    assert found[1] == wanted[1]
    for name, array in wanted[0].items():
        assert np.array_equal(found[0][name], array), name


@pytest.mark.parametrize("left_out", ["generators.set_state", "Saving.set_optimizers", "data.set_state"])
async def test_what_a_checkpoint_leaves_out_is_found(left_out, tmp_path, monkeypatch):
    async def nothing(*_):
        pass

    owner, name = left_out.split(".")
    replaced = {"generators": generators, "Saving": Saving, "data": mx.io.NDArrayIter}[owner]
    mx.random.seed(3)
    wanted, _ = await trained(sequential, optimizer="adam")
    mx.random.seed(3)
    with pytest.raises(Stopped):
        await trained(sequential, tmp_path / "run", (0, 3), "adam")
    mx.random.seed(99)
    monkeypatch.setattr(replaced, name, nothing if owner == "Saving" else lambda *_: None)
    found, _ = await trained(sequential, tmp_path / "run", None, "adam")
    assert not all(np.array_equal(found[each], array) for each, array in wanted.items())


async def test_training_that_was_finished_is_not_done_again(tmp_path):
    found = await trained(plain, tmp_path / "run")
    again = await trained(plain, tmp_path / "run", stop=(0, 0))  # no batch is reached
    more = await trained(plain, tmp_path / "run", epochs=3)
    assert all(np.array_equal(array, again[0][name]) for name, array in found[0].items())
    assert not np.array_equal(more[0]["fc_weight"], found[0]["fc_weight"])


async def test_what_callbacks_changed_is_gone_on_with(tmp_path):
    seen = []

    def slower(param):
        module = param.locals["self"]
        seen.append(module._optimizer.lr)
        if (param.epoch, param.nbatch) == (0, 1):
            module._optimizer.lr = 0.001
        if (param.epoch, param.nbatch) == (0, 2) and len(seen) == 3:
            raise Stopped

    for stopped in (True, False):
        made, batches = plain()
        arguments = {"num_epoch": 1, "batch_end_callback": slower, "checkpoint": Checkpoints(tmp_path / "run", every=2)}
        with pytest.raises(Stopped) if stopped else mx.engine.using():
            await made.fit(batches, **arguments)
    assert set(seen[3:]) == {0.001}


async def refused(error, message, kind=plain, folder=None, optimizer="sgd", **more):
    with pytest.raises(error, match=message):
        await trained(kind, folder, None, optimizer, **more)


def other():
    out = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=5, name="fc")
    return mx.mod.Module(mx.sym.SoftmaxOutput(out, name="softmax")), resuming.data()


def without_state():
    made, batches = plain()

    class Plain:
        provide_data, provide_label, batch_size = batches.provide_data, batches.provide_label, batches.batch_size

    return made, Plain()


async def test_refuses_what_can_not_be_gone_on_with(tmp_path):
    run = tmp_path / "run"
    await trained(plain, run, epochs=1)
    await refused(
        FileExistsError, "holds checkpoints of an earlier training: pass resume=True", folder=run, resume=False
    )
    await refused(CheckpointError, "is of another network", other, run)
    await refused(CheckpointError, "with the optimizer 'sgd', and this is 'adam'", folder=run, optimizer="adam")
    await refused(TypeError, "train_data is Plain, which can not say where it stands", without_state, run)
    (tmp_path / "job" / "worker-0").mkdir(parents=True)
    await refused(CheckpointError, "of a job of several workers, and this is one alone", folder=tmp_path / "job")


# -- files -----------------------------------------------------------------------------------------------------


def some(epoch=0, batch=0):
    arrays = {"weight": np.arange(6.0, dtype=np.float32).reshape(2, 3), "none": np.zeros((0, 2), np.float16)}
    return Checkpoint(Place(epoch, batch), arrays, {"states": b"123"}, {"big": 2**200, "pair": (1, [2.5, None])}, 2)


def test_a_checkpoint_comes_back_as_it_was():
    made = some(3, 4)
    made.content = {**made.content, "bits": np.arange(4, dtype=np.uint64), "number": np.float32(2.5), 7: "seven"}
    found = content.loads(b"".join(content.dumps(made)))
    assert (found.place, found.blobs, found.workers) == (Place(3, 4), {"states": b"123"}, 2)
    for name, array in made.arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert np.array_equal(found.arrays[name], array)
    bits = found.content.pop("bits")
    assert np.array_equal(bits, np.arange(4))
    assert bits.dtype == np.uint64
    assert found.content == {"big": 2**200, "pair": (1, [2.5, None]), "number": np.float32(2.5), 7: "seven"}
    with pytest.raises(TypeError, match="can not hold <object"):
        content.pack({"a": object()})


def test_a_torn_or_changed_file_is_never_read():
    data = b"".join(content.dumps(some()))
    for length in range(len(data)):
        with pytest.raises(CheckpointError):
            content.loads(data[:length])
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(CheckpointError):
            content.loads(bytes(changed))


def written(header):
    """A file whose digest is right, and whose header need not be."""
    header = header if isinstance(header, bytes) else msgpack.packb(header)
    data = struct.pack("<8sIQ", b"FLOWMXCP", 1, len(header)) + header + params.dumps([])
    return data + hashlib.blake2b(data, digest_size=32).digest()


def nested(depth):
    raw = b"\x90"
    for _ in range(depth):
        raw = msgpack.packb(msgpack.ExtType(2, b"\x91" + raw))
    return raw


FITTING = {"place": [0, 3], "workers": 1, "content": {}, "arrays": [], "blobs": [], "lengths": [len(params.dumps([]))]}
STRANGE = {
    "nested extensions": b"\x81\xa1a" + nested(20_000),
    "a million lists": b"\x81\xa1a\xdd" + struct.pack(">I", 1_000_000) + b"\x90" * 1_000_000,
    "no header": b"",
    "no map": b"\x90",
    "no fields": {},
    "no place": {**FITTING, "place": "here"},
    "a part before the file": {**FITTING, "lengths": [-1]},
    "parts behind the file": {**FITTING, "lengths": [2**63]},
    "names without arrays": {**FITTING, "arrays": ["weight"]},
    "an unknown extension": {**FITTING, "content": {"a": msgpack.ExtType(9, b"1")}},
    "an array of objects": {**FITTING, "content": {"a": msgpack.ExtType(3, msgpack.packb(["|O", [1], bytes(8)]))}},
    "an array of arrays": {**FITTING, "content": {"a": msgpack.ExtType(3, msgpack.packb(["(99999999,)f4", [0], b""]))}},
}


@pytest.mark.parametrize("header", STRANGE.values(), ids=STRANGE)
def test_one_with_a_strange_content_is_skipped_for_the_one_before(header, tmp_path, caplog):
    made = Checkpoints(tmp_path)
    made.write(some(0, 2))
    made.path(Place(0, 3)).write_bytes(written(header))
    assert made.newest().place == Place(0, 2)
    assert "epoch-0000-batch-000003.checkpoint has another content than a checkpoint" in caplog.text
    assert content.loads(written(FITTING)).place == Place(0, 3)


def test_what_could_not_be_read_again_is_not_written():
    deep = []
    for _ in range(100):
        deep = (deep,)
    with pytest.raises(ValueError, match="containers inside one another"):
        content.dumps(Checkpoint(Place(0, 0), content={"deep": deep}))


def test_the_newest_whole_one_is_read(tmp_path, caplog):
    made = Checkpoints(tmp_path, keep=3)
    assert made.newest() is None
    for batch in (1, 2, 3):
        made.write(some(0, batch))
    path = made.path(Place(0, 3))
    path.write_bytes(path.read_bytes()[:-40])
    (tmp_path / ".flowmx-left.tmp").touch()
    assert made.newest().place == Place(0, 2)
    assert "is damaged" in caplog.text
    assert made.whole() == [Place(0, 2), Place(0, 1)]
    assert not (tmp_path / ".flowmx-left.tmp").exists()


def test_the_last_ones_and_two_beginnings_are_kept(tmp_path):
    made = Checkpoints(tmp_path, every=10, keep=2)
    for epoch in range(4):
        for batch in (0, 10, 20):
            made.write(some(epoch, batch))
    assert made.places() == [Place(2, 0), Place(3, 0), Place(3, 10), Place(3, 20)]
    assert [made.is_due(batches) for batches in (9, 10, 20)] == [False, True, True]
    for arguments in ({"every": 0}, {"keep": 1}):
        with pytest.raises(ValueError, match="expected"):
            Checkpoints(tmp_path, **arguments)


METRICS = [["acc", "ce"], "f1", "mcc", "pearsonr", mx.metric.Perplexity(None), "pcc", ["f1", ["mse", "pearsonr"]]]


@pytest.mark.parametrize("given", METRICS, ids=str)
def test_a_metric_goes_on_counting(given):
    draw = np.random.default_rng(0)

    def batch():
        labels = mx.nd.array(draw.integers(0, 2, 8))
        regress = mx.nd.array(draw.random(8))
        return ([labels], [regress]) if "pearsonr" in str(given) else ([labels], [mx.nd.array(draw.random((8, 2)))])

    first, second = mx.metric.create(given), mx.metric.create(given)
    if "mse" in str(given):
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
        came, event = self._job.rounds.setdefault(name, ([], asyncio.Event()))
        came.append(self)
        if len(came) == self._job.workers:
            event.set()
        await event.wait()


PLACES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=6, unique=True)


@given(st.lists(PLACES, min_size=2, max_size=4))
def test_workers_agree_on_the_newest_place_that_all_have(found):
    async def agree():
        job = FakeJob(len(found))
        sessions = [job.session() for _ in found]
        asked = [
            newest_common(each, sorted(own, reverse=True), 0, 1) for each, own in zip(sessions, found, strict=True)
        ]
        return await asyncio.wait_for(asyncio.gather(*asked), 10)

    common = set.intersection(*map(set, found))
    assert asyncio.run(agree()) == [max(common, default=None)] * len(found)


async def test_a_worker_that_comes_late_takes_its_own():
    job = FakeJob(2)
    job.greatest = [1, 3, 17]
    assert await newest_common(job.session(), [(1, 2), (0, 0)], 0, 1) == (1, 2)
    assert await newest_common(job.session(), [], 0, 1) is None
