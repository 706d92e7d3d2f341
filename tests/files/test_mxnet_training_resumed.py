"""Training resumes from MXNet's checkpoints and optimizer states with MXNet's losses, and vice versa."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from benchmarks.turns import python_of
from tests import peers
from tests.fixtures import record_continuing as recorded

MXNET = python_of("mxnet")
FIXTURE = dict(np.load(recorded.FILE))
PEER = """
import json, sys
import mxnet as mx
from tests.fixtures import record_continuing as recorded
print(json.dumps([recorded.CONTINUE[kind](mx, name, f"{sys.argv[1]}/{kind}-{name}") for kind, name in recorded.CASES]))
"""


@pytest.mark.parametrize(("kind", "name"), recorded.CASES)
def test_resumes_with_mxnet_s_losses(kind, name, tmp_path):
    for ending in recorded.ENDINGS[kind]:
        Path(f"{tmp_path}/net{ending}").write_bytes(FIXTURE[f"{kind}/{name}/{ending}"].tobytes())
    losses = recorded.CONTINUE[kind](mx, name, f"{tmp_path}/net")
    np.testing.assert_allclose(losses, FIXTURE[f"{kind}/{name}/losses"], atol=1e-4)


def test_losses_differ_without_the_states(tmp_path):
    for ending in recorded.ENDINGS["gluon"]:
        Path(f"{tmp_path}/net{ending}").write_bytes(FIXTURE[f"gluon/sgd/{ending}"].tobytes())
    net = recorded.block(mx)
    net.load_parameters(f"{tmp_path}/net.params")
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", recorded.optimizer_of(mx, "sgd"))
    losses = recorded.steps_of_gluon(mx, net, trainer, recorded.BEFORE, recorded.AFTER)
    assert np.abs(np.array(losses) - FIXTURE["gluon/sgd/losses"]).max() > 0.05


@pytest.mark.skipif(MXNET is None, reason="no MXNet 1.9.1 environment under PEERS")
def test_mxnet_resumes_with_flowmx_s_losses(tmp_path):
    ours = []
    for kind, name in recorded.CASES:
        prefix = f"{tmp_path}/{kind}-{name}"
        recorded.BEGIN[kind](mx, name, prefix)
        states = prefix + recorded.ENDINGS[kind][-1]
        mx.optimizer.convert_states(states, states)
        ours.append(recorded.CONTINUE[kind](mx, name, prefix))
    result = subprocess.run(
        [str(MXNET), "-c", PEER, str(tmp_path)], check=True, capture_output=True, timeout=110,
        env=peers.environment(PYTHONPATH="."),
    )  # fmt: skip
    theirs = json.loads(result.stdout.splitlines()[-1])
    np.testing.assert_allclose(theirs, ours, atol=1e-4)


@pytest.mark.parametrize("kind", ["module", "gluon"])
@pytest.mark.parametrize("format", ["mxnet", "flowmx"])
def test_converted_states_resume_with_the_same_losses(kind, format, tmp_path):
    for ending in recorded.ENDINGS[kind]:
        Path(f"{tmp_path}/net{ending}").write_bytes(FIXTURE[f"{kind}/adam/{ending}"].tobytes())
    states = f"{tmp_path}/net{recorded.ENDINGS[kind][-1]}"
    mx.optimizer.convert_states(states, states, "flowmx")
    mx.optimizer.convert_states(states, states, format)
    assert Path(states).read_bytes().startswith(b"FLOWMXOS") == (format == "flowmx")
    losses = recorded.CONTINUE[kind](mx, "adam", f"{tmp_path}/net")
    np.testing.assert_allclose(losses, FIXTURE[f"{kind}/adam/losses"], atol=1e-4)


def test_refuses_to_convert_other_files(tmp_path):
    (tmp_path / "states").write_bytes(b"something else")
    with pytest.raises(mx.optimizer.StatesFormatError, match="not a file of optimizer states"):
        mx.optimizer.convert_states(tmp_path / "states", tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        mx.optimizer.convert_states(tmp_path / "none", tmp_path / "other")
    assert not (tmp_path / "other").exists()
