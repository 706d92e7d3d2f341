"""A budget: predictors share the computing time in proportion to their weights, and none starves."""

import asyncio
import random
import threading
from typing import ClassVar

import numpy as np
import pytest

import flowmx as mx
from flowmx.comm.metrics import Metrics
from flowmx.serve import Budget, Overloaded, Predictor
from flowmx.serve.budget import FairShares, Share
from tests.waiting import until


def used_seconds(weights, durations, slots=1, batches=2000):
    """Return the seconds that shares with full queues get of some number of batches."""
    shares, fair = [Share(weight) for weight in weights], FairShares(slots)
    chance, running, seconds, now = random.Random(0), [], dict.fromkeys(shares, 0.0), 0.0
    for share in shares:
        for _ in range(slots):
            fair.join(share)
    for _ in range(batches):
        while (share := fair.next()) is not None:
            fair.begin(share)
            running.append((now + chance.uniform(0.5, 1.5) * durations[shares.index(share)], now, id(share), share))
        running.sort()
        now, start, _, share = running.pop(0)
        fair.end(share, now - start)
        seconds[share] += now - start
        fair.join(share)
    return list(seconds.values())


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize(
    ("weights", "durations"),
    [((1, 1), (0.1, 0.001)), ((3, 1), (0.01, 0.01)), ((1, 4), (0.05, 0.002)), ((1, 2, 5), (0.01, 0.02, 0.03))],
)
def test_time_is_divided_by_weights_whatever_the_batches_take(weights, durations, slots):
    seconds = used_seconds(weights, durations, slots, 20_000)
    if slots < len(weights):  # with a slot for each, all run all the time
        np.testing.assert_allclose(np.divide(seconds, sum(seconds)), np.divide(weights, sum(weights)), rtol=0.05)
    else:
        assert min(seconds) > 0


def test_an_idle_share_gets_no_credit_and_waits_for_no_more_than_its_turn():
    fair, busy, idle = FairShares(1), Share(1), Share(1)
    for _ in range(100):
        fair.join(busy)
        fair.begin(busy)
        fair.end(busy, 1.0)
    fair.join(busy)
    fair.join(idle)
    order = []
    for _ in range(10):
        share = fair.next()
        order.append(share)
        fair.begin(share)
        fair.end(share, 1.0)
        fair.join(share)
    assert 4 <= order.count(idle) <= 6
    assert idle in order[:2]


class Meter(mx.operator.CustomOp):
    """An identity that notes the model that it belongs to, and how many compute at a time."""

    order: ClassVar[list[str]] = []
    gate = threading.Event()
    active: ClassVar[list[int]] = [0, 0]

    def __init__(self, name):
        super().__init__()
        self.name = name

    def forward(self, is_train, req, in_data, out_data, aux):
        Meter.active[0] += 1
        Meter.active[1] = max(Meter.active)
        Meter.order.append(self.name)
        assert Meter.gate.wait(30)
        self.assign(out_data[0], req[0], in_data[0])
        Meter.active[0] -= 1


@mx.operator.register("serve_meter")
class MeterProp(mx.operator.CustomOpProp):
    def __init__(self, model="a"):
        super().__init__()
        self.model = model

    def create_operator(self, ctx, shapes, dtypes):
        return Meter(self.model)


def metered(name, **options):
    symbol = mx.sym.Custom(mx.sym.var("data"), op_type="serve_meter", model=name)
    net = mx.gluon.SymbolBlock(symbol, mx.sym.var("data"))
    return Predictor(net, (2,), max_batch=1, max_queue=64, name=name, metrics=Metrics(), **options)


async def test_models_of_one_budget_take_turns_and_a_flood_starves_nobody():
    Meter.gate.set()
    budget = Budget(1)
    flood, rare = metered("flood", budget=budget), metered("rare", budget=budget)
    async with flood, rare:
        Meter.gate.clear()
        Meter.order.clear()
        Meter.active[:] = [0, 0]
        asking = [asyncio.create_task(flood([i, 0])) for i in range(30)]
        await until(lambda: Meter.order)
        late = asyncio.create_task(rare([7, 8]))
        cancelled = asyncio.create_task(rare([0, 0]))
        await until(lambda: rare._runner.pending == 2)
        cancelled.cancel()
        await until(lambda: rare._runner.pending == 1)
        Meter.gate.set()
        assert (await late).tolist() == [7, 8]
        assert Meter.order.index("rare") <= 3
        assert Meter.active[1] == 1
        await rare.swap(metered_block("second"))  # another model of the same predictor keeps its share
        assert (await rare([1, 2])).tolist() == [1, 2]
        assert [(await task)[0] for task in asking] == list(range(30))


def metered_block(name):
    symbol = mx.sym.Custom(mx.sym.var("data"), op_type="serve_meter", model=name)
    return mx.gluon.SymbolBlock(symbol, mx.sym.var("data"))


async def test_overload_of_one_model_refuses_no_request_of_another():
    Meter.gate.set()
    budget = Budget(1)
    flood, rare = metered("flood", budget=budget, weight=0.5), metered("rare", budget=budget)
    async with flood, rare:
        Meter.gate.clear()
        asking = [asyncio.create_task(flood([i, 0])) for i in range(64)]
        await until(lambda: flood._runner.queue.rows >= 63)
        with pytest.raises(Overloaded):
            await asyncio.gather(*(flood([0, 0]) for _ in range(3)))
        answer = asyncio.create_task(rare([1, 2]))
        Meter.gate.set()
        assert (await answer).tolist() == [1, 2]
        draining = asyncio.create_task(flood.drain())
        assert (await rare([3, 4])).tolist() == [3, 4]
        await draining
        assert len([await task for task in asking]) == 64


@pytest.mark.parametrize("weight", [0, -1, float("inf"), float("nan"), "2"])
def test_wrong_weights_are_refused(weight):
    with pytest.raises(ValueError, match="expected a number above 0"):
        Budget().share(weight)
    with pytest.raises(ValueError, match="expected at least 1 batch"):
        Budget(0)


def test_a_repository_shares_its_budget(tmp_path):
    net = mx.gluon.nn.Dense(2)
    net.initialize()
    net.hybridize()
    net(mx.nd.zeros((1, 3)))
    for name, weight in {"large": 3, "small": "1.5"}.items():
        (tmp_path / name).mkdir()
        net.export(tmp_path / name / "model")
        (tmp_path / name / "model.toml").write_text(f"shape = [3]\nweight = {weight}")
    repository = mx.serve.Repository(tmp_path, Budget(1))

    async def load():
        await repository.load_all()
        result = await asyncio.gather(*(repository.models.find(name)(np.ones(3)) for name in ("large", "small")))
        await repository.models.drain()
        return result

    first, second = asyncio.run(load())
    np.testing.assert_array_equal(first, second)
    assert not repository.failures
