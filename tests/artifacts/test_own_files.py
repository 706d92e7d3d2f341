"""`flowmx inspect` names the files that flowmx writes, with the next command."""

import json

import numpy as np
import pytest

import flowmx as mx
from flowmx.artifacts import inspect
from flowmx.checkpoint import files
from flowmx.checkpoint.content import Checkpoint, Place
from flowmx.kvstore.server import snapshot
from flowmx.serialization import safetensors


def write_checkpoint(path):
    content = Checkpoint(Place(3, 200), {"w": np.ones(4, np.float32)})
    path.write_bytes(b"".join(map(bytes, files.dumps(content))))


def write_trace(path):
    mx.profiler.set_config(filename=str(path))
    mx.profiler.set_state("run")
    mx.nd.ones((2,)).wait_to_read()
    mx.profiler.set_state("stop")
    mx.profiler.dump()


def write_structure(path):
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(2, in_units=3))
    net.initialize()
    net.save(str(path).removesuffix("-model.json"))


FILES = {
    "epoch-0003-batch-000200.checkpoint": (write_checkpoint, "a checkpoint of a training by flowmx", "flowmx train"),
    "server-0.snapshot": (lambda path: snapshot.save(path, [], snapshot.Snapshot(job="j")),
                          "the state of a server of a KVStore", "flowmx server --snapshot"),
    "profile.json": (write_trace, "a profile", "perfetto"),
    "net-model.json": (write_structure, "the structure of a Gluon block", "net.load("),
    "report.json": (lambda path: path.write_text(json.dumps({"devices": [], "bound_by": ""})),
                    "a report of flowmx plan", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_that_flowmx_writes_are_named_with_the_next_command(tmp_path, name):
    write, kind, command = FILES[name]
    write(tmp_path / name)
    report = inspect(tmp_path / name)
    assert report.kind == kind and not report.problem
    assert not command or command in report.commands[0]


FOLDERS = {
    "epoch-0003-batch-000200.checkpoint": "the checkpoints of a training by flowmx",
    "server-0.snapshot": "the states of the servers of a KVStore",
}


@pytest.mark.parametrize("name", FOLDERS)
def test_the_folders_of_a_training_are_named(tmp_path, name):
    FILES[name][0](tmp_path / name)
    report = inspect(tmp_path)
    assert report.kind == FOLDERS[name] and not report.problem and report.parts[0].commands


def test_an_adapter_is_served_with_its_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8}))
    safetensors.save(tmp_path / "adapter_model.safetensors", {"a.lora_A.weight": np.ones((8, 4), np.float32)})
    report = inspect(tmp_path)
    assert report.kind == "a LoRA adapter" and not report.problem
    assert f"flowmx serve MODEL --adapter NAME={tmp_path}" in [line for part in report.parts for line in part.commands]


@pytest.mark.parametrize("size", [8, 20, 40])
def test_damaged_files_of_trainings_are_refused(tmp_path, size):
    for name in FOLDERS:
        FILES[name][0](tmp_path / name)
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:size])
        assert inspect(tmp_path / name).problem
