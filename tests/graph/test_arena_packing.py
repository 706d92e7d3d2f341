"""Packing values into an arena: values alive together never overlap, and the size is close to the lower bound."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowmx as mx
from benchmarks.workers import networks
from flowmx import settings
from flowmx.graph import compiler
from flowmx.graph.planning import arena_packing
from flowmx.graph.planning.arena_packing import ALIGNMENT, Life, align, lower_bound, pack, pack_separately

LIVES = st.lists(
    st.builds(
        lambda size, first, length: Life(size, first, first + length),
        st.integers(0, 1 << 20), st.integers(0, 60), st.one_of(st.integers(0, 3), st.integers(0, 60)),
    ),
    max_size=40,
)  # fmt: skip


def wrong(lives, packing):
    """Return the first fault of a packing, or None."""
    for one, (life, offset) in enumerate(zip(lives, packing.offsets, strict=True)):
        if offset % ALIGNMENT or offset < 0 or offset + life.size > packing.size:
            return f"value {one} at {offset}"
        for other in range(one):
            across = lives[other]
            together = life.first <= across.last and across.first <= life.last and life.size and across.size
            start = packing.offsets[other]
            if together and offset < start + across.size and start < offset + life.size:
                return f"values {other} and {one}"
    return None


def alive_at_most(lives):
    """Return the lower bound, counted at each step."""
    steps = {step for life in lives for step in (life.first, life.last)}
    return max((sum(life.size for life in lives if life.first <= step <= life.last) for step in steps), default=0)


@given(LIVES)
def test_values_alive_together_do_not_overlap(lives):
    packing = pack(lives)
    assert wrong(lives, packing) is None
    assert packing.size >= alive_at_most(lives)
    assert wrong(lives, pack_separately(lives)) is None


@given(LIVES)
def test_lower_bound(lives):
    assert lower_bound(lives) == alive_at_most(lives)


def test_the_checker_detects_wrong_packings():
    lives = [Life(64, 0, 1), Life(64, 1, 2), Life(64, 3, 3)]
    assert wrong(lives, pack(lives)._replace(offsets=[0, 64, 0])) is None
    assert wrong(lives, pack(lives)._replace(offsets=[0, 0, 0])) == "values 0 and 1"
    assert wrong(lives, pack(lives)._replace(offsets=[0, 32, 64])) == "value 1 at 32"
    assert wrong(lives, pack(lives)._replace(size=64, offsets=[0, 64, 0])) == "value 1 at 64"


def training(layers, seed=0):
    """Return the lives of a chain's values and gradients."""
    rng = random.Random(seed)
    lives = []
    for layer in range(layers):
        size = rng.choice([64, 128, 256, 512, 1024]) * 1000
        back = 2 * layers - layer
        lives += [Life(size, layer, back), Life(size, back - 1, back)]
    return lives


@pytest.mark.parametrize("layers", [10, 100, 1000])
def test_near_the_lower_bound_on_chains(layers):
    lives = training(layers)
    assert pack(lives).size <= 1.01 * lower_bound([life._replace(size=align(life.size)) for life in lives])


def test_no_order_is_tried_again(monkeypatch):
    """Otherwise two values that displace each other would alternate until all attempts are used up."""
    orders = []
    real = arena_packing._place

    def place(lives, order):
        orders.append(tuple(order))
        return real(lives, order)

    monkeypatch.setattr(arena_packing, "_place", place)
    rng = random.Random(0)
    for _ in range(40):
        orders.clear()
        firsts = [rng.randrange(8) for _ in range(12)]
        lives = [Life(rng.randrange(1, 9) * (1 << 20), first, first + rng.randrange(4)) for first in firsts]
        arena_packing._improve(lives, list(range(len(lives))), 0)
        assert len(orders) == len(set(orders))


def test_many_values_take_little_time():
    start = time.process_time()
    pack(training(20_000))
    assert time.process_time() - start < 10


def test_a_second_backward_pass_runs_the_forward_pass_again_with_the_same_random_numbers():
    x = mx.sym.Variable("x")
    net = mx.sym.Dropout(mx.sym.sigmoid(x), p=0.5)
    executor = net.simple_bind(mx.cpu(), x=(100,))
    for in_two in (True, False, True):
        if in_two:
            executor.forward(is_train=True)
            executor.backward()
        else:
            executor.forward_backward()
        output, first = executor.outputs[0].asnumpy(), executor.grad_dict["x"].asnumpy()
        mx.random.seed(7)
        executor.backward()
        assert (executor.grad_dict["x"].asnumpy() == first).all() and (executor.outputs[0].asnumpy() == output).all()
        drawn = mx.nd.random.uniform(shape=3).asnumpy()
        mx.random.seed(7)
        assert (mx.nd.random.uniform(shape=3).asnumpy() == drawn).all(), "no numbers were drawn again"
    with mx.engine.using(exec_enable_inplace=False, exec_match_range=0):
        keeping = net.simple_bind(mx.cpu(), x=(100,))
    keeping.forward(is_train=True)
    keeping.backward()
    first = keeping.grad_dict["x"].asnumpy()
    keeping.backward()
    assert (keeping.grad_dict["x"].asnumpy() == first).all()


def plan_of(name, grad_req):
    net = networks.symbol(mx, networks.NETWORKS[name])
    requests = {each: "null" if each in ("data", "softmax_label") else grad_req for each in net.list_arguments()}
    return net.simple_bind(mx.cpu(), grad_req=requests, data=(8, 3, 224, 224), softmax_label=(8,)).plan


def damaged(plan, offsets):
    """Simulate the plan's steps; return the first value that is read after it was overwritten, or None."""
    whole = {}
    for node in (*plan.forward, *plan.backward):
        outputs = [(node, index) for index in range(node.outputs())]
        if outputs[0] in plan.root:
            continue
        for entry in node.contents():
            root = plan.root.get(entry, entry)
            if root in plan.place and root not in whole:
                return entry
        for entry in outputs:
            if entry in plan.place:
                start = offsets[plan.place[entry]]
                stop = start + plan.nbytes(entry)
                for other, (low, high) in list(whole.items()):
                    if low < stop and start < high:
                        if other in outputs:
                            return other
                        del whole[other]
                whole[entry] = (start, stop)
    return next((entry for entry in plan.outputs if entry in plan.place and entry not in whole), None)


@pytest.mark.parametrize("slices", ["auto", "off"])
@pytest.mark.parametrize("grad_req", ["write", "null"])
@pytest.mark.parametrize("name", ["googlenet", "resnet_18"])
def test_networks_reach_the_bound_and_no_value_is_overwritten_early(name, grad_req, slices, monkeypatch):
    with settings.override(exec_slice=slices):
        plan = plan_of(name, grad_req)
    assert damaged(plan, plan.arena.offsets) is None
    assert damaged(plan, [0] * len(plan.lives)) is not None, "the check sees a wrong plan"
    assert plan.internal_bytes() <= 1.02 * alive_at_most(plan.lives)
    monkeypatch.setattr(compiler, "PASSES", [])
    with settings.override(exec_slice="off"):
        whole = plan_of(name, grad_req)
    assert plan.internal_bytes() < 0.35 * whole.unshared_bytes(), "of the graph as it was written"
