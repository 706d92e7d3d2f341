"""Seeds in a launched job: data order, dropout and initialization repeat on all workers."""

import asyncio
import json
import os
import sys

import pytest

from flowmx.comm.launch.job import Launcher, Plan

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes die with the launcher on Linux alone")

PROGRAM = """
import hashlib, json, random, sys
import numpy as np
import flowmx as mx
from flowmx import autograd, gluon

def digest(array):
    return hashlib.sha1(np.ascontiguousarray(array.asnumpy())).hexdigest()[:8]

random.seed(7), np.random.seed(7), mx.random.seed(7)
kv = mx.kv.create("dist_sync")
if sys.argv[1] == "by rank":
    seed = 7 + kv.rank
    random.seed(seed), np.random.seed(seed), mx.random.seed(seed)
x = np.arange(60, dtype=np.float32).reshape(30, 2)
data = mx.io.NDArrayIter(x[kv.rank::2], np.zeros(15, np.float32), 5, shuffle=True)
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(8, in_units=2), gluon.nn.Dropout(0.5), gluon.nn.Dense(1, in_units=8))
net.initialize(mx.init.Xavier())
net.hybridize()
first = [digest(p.data()) for p in net.collect_params().values()]
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-3}, kvstore=kv)
order = []
for epoch in range(2):
    data.reset()
    for batch in data:
        order += (batch.data[0].asnumpy()[:, 0] // 4).astype(int).tolist()
        with autograd.record():
            loss = gluon.loss.L2Loss()(net(batch.data[0]), batch.label[0])
        loss.backward()
        trainer.step(10)
with autograd.record():
    mask = digest(mx.nd.Dropout(mx.nd.ones((50,)), p=0.5))
last = [digest(p.data()) for p in net.collect_params().values()]
print(json.dumps({"rank": kv.rank, "order": order, "first": first, "mask": mask, "last": last}), flush=True)
kv.close()
"""


async def trained(folder, how):
    """Return the results that both workers print, in the order of ranks."""
    path = folder / "train.py"
    path.write_text(PROGRAM)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWMX_", "DMLC_"))}
    lines = []
    plan = Plan([sys.executable, str(path), how], 2, 1, environ=inherited)
    assert await Launcher(plan, lambda name, line: lines.append((name, line))).run() == 0, lines
    reports = [json.loads(line) for name, line in lines if name.startswith("worker") and line.startswith("{")]
    return sorted(reports, key=lambda report: report["rank"])


async def test_with_one_seed_all_workers_draw_the_same_and_a_second_run_repeats(tmp_path):
    one, other = await asyncio.gather(trained(tmp_path, "alike"), trained(tmp_path, "alike"))
    assert one == other and len(one) == 2
    first, second = one
    assert {**first, "rank": 1} == second  # initial values, order, dropout and what was learnt
    epochs = first["order"][:15], first["order"][15:]
    assert sorted(epochs[0]) == sorted(epochs[1]) and epochs[0] != epochs[1]
    assert first["first"] != first["last"]


async def test_with_seeds_by_rank_the_workers_differ_and_a_second_run_repeats(tmp_path):
    one, other = await asyncio.gather(trained(tmp_path, "by rank"), trained(tmp_path, "by rank"))
    assert one == other and len(one) == 2
    first, second = one
    assert first["order"] != second["order"] and first["mask"] != second["mask"]
    assert first["first"] != second["first"] and first["last"] == second["last"]
