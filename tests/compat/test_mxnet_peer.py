"""Checkpoints go both ways between flowmx and a real MXNet 1.9.1, where one is installed.

As in the benchmarks, the interpreter is under the folder that PEERS names (``mxnet/bin/python``).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from benchmarks.turns import python_of
from tests import peers
from tests.fixtures import record_mxnet

MXNET = python_of("mxnet")
PREDICT = """
import sys
import numpy as np
import mxnet as mx
prefix, = sys.argv[1:]
symbol, arguments, auxiliary = mx.model.load_checkpoint(prefix, 1)
data = np.load(prefix + "-data.npy")
executor = symbol.simple_bind(mx.cpu(), grad_req="null", data=data.shape)
executor.copy_params_from(arguments, auxiliary, allow_extra_params=True)
np.save(prefix + "-mxnet.npy", executor.forward(is_train=False, data=mx.nd.array(data))[0].asnumpy())
mx.model.save_checkpoint(prefix + "-back", 1, symbol, arguments, auxiliary)
"""

pytestmark = pytest.mark.skipif(MXNET is None, reason="no MXNet 1.9.1 environment under PEERS")


def predict(symbol, arguments, auxiliary, data):
    executor = symbol.simple_bind(mx.cpu(), grad_req="null", data=data.shape)
    executor.copy_params_from(arguments, auxiliary, allow_extra_params=True)
    return executor.forward(data=data)[0].asnumpy()


@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet"])
def test_a_checkpoint_of_ours_predicts_the_same_in_mxnet_and_comes_back(name, tmp_path):
    symbol = getattr(record_mxnet, name)(mx)
    random = np.random.default_rng(5)
    shape = record_mxnet.INPUT_SHAPES[name]
    shapes = symbol.infer_shape(data=shape)
    arguments, auxiliary = (
        {
            key: mx.nd.array(np.abs(v) + 0.5 if key.endswith(("gamma", "var")) else v / np.sqrt(np.prod(v.shape[1:])))
            for key, v in zip(names, (random.normal(size=s) for s in actual), strict=True)
            if key != "data" and "label" not in key
        }
        for names, actual in (
            (symbol.list_arguments(), shapes[0]),
            (symbol.list_auxiliary_states(), shapes[2]),
        )
    )
    data = random.normal(size=shape).astype(np.float32)
    prefix = str(tmp_path / name)
    mx.model.save_checkpoint(prefix, 1, symbol, arguments, auxiliary)
    np.save(f"{prefix}-data.npy", data)
    assert MXNET is not None
    subprocess.run(
        [MXNET, "-c", PREDICT, prefix], check=True, env=peers.environment(), capture_output=True, timeout=100
    )
    ours = predict(symbol, arguments, auxiliary, data)
    np.testing.assert_allclose(ours, np.load(f"{prefix}-mxnet.npy"), atol=1e-5, rtol=1e-5)
    back = mx.model.load_checkpoint(f"{prefix}-back", 1)
    assert np.array_equal(predict(*back, data), ours)
    again = Path(f"{prefix}-back-symbol.json").read_text()
    assert back[0].tojson() == again
