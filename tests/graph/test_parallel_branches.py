"""Stages of branches: every step once, after its predecessors, and never concurrent with them."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowmx as mx
from flowmx.graph.planning import branches
from flowmx.graph.planning.arena_packing import lower_bound
from flowmx.graph.planning.branches import stages

GRAPHS = st.integers(0, 25).flatmap(
    lambda n: st.tuples(
        st.tuples(*(st.sets(st.integers(0, max(0, i - 1)), max_size=3 if i else 0) for i in range(n))),
        st.lists(st.integers(0, 3), min_size=n, max_size=n),
    )
)


def wrong(predecessors, results):
    """Return the first fault of stages, or None."""
    done = set()
    for stage in results:
        begun = set(done)
        for chain in stage:
            own = set(done)
            for step in chain:
                if step in begun:
                    return f"{step} twice"
                if not set(predecessors[step]) <= own:
                    return f"{step} too early"
                own.add(step)
                begun.add(step)
        done = begun
    return None if done == set(range(len(predecessors))) else "steps are missing"


@given(GRAPHS)
def test_stages_are_valid(graph):
    predecessors, costs = graph
    predecessors = [sorted(each) for each in predecessors]
    assert wrong(predecessors, stages(predecessors, costs, threshold=2)) is None
    alone = stages(predecessors, costs, threshold=100)
    assert all(len(stage) == 1 for stage in alone) and len(alone) <= 1


def test_the_checker_detects_wrong_stages():
    predecessors = [[], [0], [0], [1, 2]]
    assert wrong(predecessors, [[[0]], [[1], [2]], [[3]]]) is None
    assert wrong(predecessors, [[[0]], [[1], [2, 3]]]) == "3 too early"
    assert wrong(predecessors, [[[0], [1]], [[2]], [[3]]]) == "1 too early"
    assert wrong(predecessors, [[[0]], [[1], [2]], [[2]], [[3]]]) == "2 twice"
    assert wrong(predecessors, [[[0]], [[1], [2]]]) == "steps are missing"


def test_an_inception_block():
    # 0 -> (1), (2 3), (4 5), (6 7) -> 8 -> 9, where the first branch takes little
    predecessors = [[], [0], [0], [2], [0], [4], [0], [6], [1, 3, 5, 7], [8]]
    costs = [9, 1, 9, 9, 9, 9, 9, 9, 9, 9]
    assert stages(predecessors, costs, threshold=5) == [[[0]], [[2, 3], [4, 5], [1, 6, 7]], [[8, 9]]]
    assert stages(predecessors, costs, threshold=50) == [[list(range(10))]]


# -- several workers ---------------------------------------------------------------------------------------


def network():
    def conv(x, filters, kernel):
        x = mx.sym.Convolution(x, num_filter=filters, kernel=(kernel, kernel), pad=(kernel // 2, kernel // 2))
        return mx.sym.Activation(mx.sym.BatchNorm(x, fix_gamma=False), act_type="relu")

    x = mx.sym.Variable("data")
    for _ in range(3):
        pooled = mx.sym.Pooling(x, kernel=(3, 3), stride=(1, 1), pad=(1, 1), pool_type="max")
        x = mx.sym.Concat(conv(x, 4, 1), conv(conv(x, 3, 1), 6, 3), conv(conv(x, 3, 1), 2, 5), conv(pooled, 2, 1))
    x = mx.sym.Dropout(mx.sym.Pooling(x, global_pool=True, pool_type="avg", kernel=(1, 1)), p=0.3)
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=5), name="softmax")


def trained(steps=4):
    """Return parameters, outputs and statistics after some steps, and the executor."""
    rng = np.random.default_rng(0)
    mx.random.seed(3)
    with mx.name.NameManager():  # the same names each time
        net = network()
    bound = net.simple_bind(mx.cpu(5), data=(2, 3, 12, 12), softmax_label=(2,))
    for name in sorted(bound.arg_dict):
        array = bound.arg_dict[name]
        array[:] = rng.integers(0, 5, array.shape) if name == "softmax_label" else rng.standard_normal(array.shape)
    for _ in range(steps):
        bound.forward(is_train=True)
        bound.backward()
        for name, array in bound.arg_dict.items():
            if name not in ("data", "softmax_label"):
                array -= 0.01 * bound.grad_dict[name]
        bound.forward()
        bound.forward_backward()
    return [each.asnumpy() for each in (*bound.outputs, *bound.arg_dict.values(), *bound.aux_dict.values())], bound


@pytest.fixture
def eager(monkeypatch):
    """Make every branch worth a worker."""
    monkeypatch.setattr(branches, "WORTH_NS", 0)


def test_branches_match_sequential_steps(eager):
    expected, alone = trained()
    with mx.engine.using(cpu_worker_nthreads=3):
        results, bound = trained()
    assert not alone.plan.stages[0]
    assert sum(len(stage) > 1 for stages in bound.plan.stages for stage in stages) >= 6
    for one, other in zip(expected, results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_concurrent_steps_share_no_memory(eager):
    with mx.engine.using(cpu_worker_nthreads=2):
        plan = trained(0)[1].plan
    step_of = {node: step for step, node in enumerate(plan.steps())}
    places = {}
    for entry, place in plan.place.items():
        places.setdefault(place, []).append(entry.node)
    for stage in (*plan.stages[0], *plan.stages[1]):
        chain_of = {node: number for number, chain in enumerate(stage) for node in chain}
        owners = [
            (place, chain_of[node]) for place, nodes in places.items() for node in nodes if node in chain_of
        ]  # fmt: skip
        for place, chain in owners:
            for other, elsewhere in owners:
                if chain != elsewhere:
                    start, stop = plan.arena.offsets[place], plan.arena.offsets[place] + plan.lives[place].size
                    begin, end = plan.arena.offsets[other], plan.arena.offsets[other] + plan.lives[other].size
                    assert place != other and (stop <= begin or end <= start)
    assert len(step_of) == len(plan.steps())
    assert plan.internal_bytes() >= lower_bound(plan.lives)


def test_the_setting_in_a_separate_process():
    code = (
        "import flowmx as mx, numpy as np; from flowmx.graph.planning import branches; branches.WORTH_NS = 0;"
        "x = mx.sym.Variable('x'); w = mx.sym.Variable('w');"
        "y = mx.sym.dot(x, w) + mx.sym.dot(mx.sym.exp(x), w);"
        "b = y.bind(mx.cpu(), {'x': mx.nd.ones((64, 64)), 'w': mx.nd.ones((64, 64))});"
        "assert max(len(s) for s in b.plan.stages[0]) > 1;"
        "np.testing.assert_allclose(b.forward()[0].asnumpy(), 64 * (1 + np.e), rtol=1e-5)"
    )
    environment = {**os.environ, "FLOWMX_CPU_WORKER_NTHREADS": "2"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)
