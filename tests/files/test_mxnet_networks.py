"""Two dozen networks saved by MXNet 1.9.1 compute the same in flowmx, and vice versa."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from benchmarks.turns import python_of
from flowmx.serialization import params
from tests import peers
from tests.fixtures import record_networks as recorded

MXNET = python_of("mxnet")
FIXTURE = dict(np.load(recorded.FILE))
SMALL = ("language_model", "bidirectional_gru", "unrolled_cells", "transformer", "generator", "multi_head")
needs_mxnet = pytest.mark.skipif(MXNET is None, reason="no MXNet 1.9.1 environment under PEERS")


def outputs_of(network):
    keys = [key for key in FIXTURE if key.startswith(f"{network}/output")]
    return [FIXTURE[key] for key in sorted(keys)]


@pytest.fixture
def saved(request, tmp_path):
    """Unpack the files that MXNet wrote; return their common prefix."""
    network = request.param
    prefix = tmp_path / network
    shapes = json.loads(FIXTURE[f"{network}/shapes"].tobytes())
    arrays = {key: recorded.value(network, key.partition(":")[2], shape) for key, shape in shapes.items()}
    params.save(f"{prefix}-{recorded.EPOCH:04d}.params", arrays)
    Path(f"{prefix}-symbol.json").write_bytes(FIXTURE[f"{network}/symbol"].tobytes())
    return network, str(prefix)


def assert_close(actual, expected):
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * max(1, np.abs(theirs).max()))


@pytest.mark.parametrize("saved", recorded.BLOCKS, indirect=True)
def test_gluon_imports_what_mxnet_exported(saved):
    network, prefix = saved
    inputs = recorded.given(network)
    files = f"{prefix}-symbol.json", f"{prefix}-{recorded.EPOCH:04d}.params"
    block = mx.gluon.SymbolBlock.imports(files[0], list(inputs), files[1])
    actual = recorded.flat(block(*[mx.nd.array(each) for each in inputs.values()]))
    assert_close([each.asnumpy() for each in actual], outputs_of(network))


@pytest.mark.parametrize("saved", [*recorded.SYMBOLS, *SMALL], indirect=True)
def test_a_checkpoint_of_mxnet_s_computes_the_same(saved):
    network, prefix = saved
    symbol, arguments, auxiliary = mx.model.load_checkpoint(prefix, recorded.EPOCH)
    actual = recorded.predict(mx, symbol, arguments, auxiliary, recorded.given(network))
    assert_close(actual, outputs_of(network))


@pytest.mark.parametrize("network", [*recorded.SYMBOLS, *recorded.BLOCKS])
def test_a_symbol_of_mxnet_s_is_written_back_byte_for_byte(network):
    text = FIXTURE[f"{network}/symbol"].tobytes().decode()
    assert mx.sym.load_json(text).tojson() == text


# -- with the real MXNet ---------------------------------------------------------------------------------------

PEER = """
import sys
import numpy as np
import mxnet as mx
from tests.fixtures import record_networks as recorded
folder, found = sys.argv[1], {}
for name in sys.argv[2:]:
    ours, inputs = f"{folder}/ours-{name}", recorded.given(name)
    files = f"{ours}-symbol.json", f"{ours}-{recorded.EPOCH:04d}.params"
    if name in recorded.BLOCKS:
        block = mx.gluon.SymbolBlock.imports(files[0], list(inputs), files[1])
        outputs = [each.asnumpy() for each in recorded.flat(block(*map(mx.nd.array, inputs.values())))]
    else:
        outputs = recorded.predict(mx, *mx.model.load_checkpoint(ours, recorded.EPOCH), inputs)
    found.update({f"{name}/{i}": output for i, output in enumerate(outputs)})
    recorded.save(mx, name, f"{folder}/theirs-{name}")
np.savez(folder + "/found.npz", **found)
"""
LARGE = {"alexnet", "densenet121", "vgg11", "vgg13_bn", "resnet18_v1", "resnet18_v2", "resnet50_v1", "resnet50_v2"}
LARGE |= {"inceptionv3", "squeezenet1.0", "squeezenet1.1"}


def both_ways(networks, folder):
    """Save each network here and let MXNet run it; let MXNet save each and run it here."""
    for name in networks:
        recorded.save(mx, name, folder / f"ours-{name}")
    command = [str(MXNET), "-c", PEER, str(folder), *networks]
    environment = peers.environment(PYTHONPATH=".")
    subprocess.run(command, check=True, capture_output=True, timeout=110, env=environment)
    results = np.load(folder / "found.npz")
    for name in networks:
        expected = outputs_of(name)
        assert_close([results[f"{name}/{i}"] for i in range(len(expected))], expected)
        loaded = mx.model.load_checkpoint(str(folder / f"theirs-{name}"), recorded.EPOCH)
        assert_close(recorded.predict(mx, *loaded, recorded.given(name)), expected)
        ours, theirs = (
            (folder / f"{whose}-{name}-{recorded.EPOCH:04d}.params").read_bytes() for whose in ("ours", "theirs")
        )
        assert len(ours) == len(theirs)


@needs_mxnet
def test_networks_go_both_ways(tmp_path):
    both_ways([name for name in [*recorded.BLOCKS, *recorded.SYMBOLS] if name not in LARGE], tmp_path)


@needs_mxnet
@pytest.mark.soak
@pytest.mark.parametrize("network", sorted(LARGE))
def test_large_networks_go_both_ways(network, tmp_path):
    both_ways([network], tmp_path)
