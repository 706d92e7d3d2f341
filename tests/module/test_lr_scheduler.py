"""Learning rate schedules, against MXNet's curves."""

import json

import pytest

import flowmx as mx
from tests.fixtures import record_training as recorded

CURVES = json.loads((recorded.FOLDER / "schedules.json").read_text())


@pytest.mark.parametrize("case", recorded.SCHEDULES, ids=str)
def test_follows_the_recorded_curve(case):
    name, arguments = case
    schedule = getattr(mx.lr_scheduler, name)(**arguments)
    assert [schedule(update) for update in recorded.UPDATES] == pytest.approx(CURVES[str(case)], rel=1e-12)


@pytest.mark.parametrize(("name", "arguments"), recorded.SCHEDULES, ids=str)
def test_a_new_schedule_catches_up_with_an_old_one(name, arguments):
    old = getattr(mx.lr_scheduler, name)(**arguments)
    history = [old(update) for update in recorded.UPDATES]
    for update in (11, 33, 75):
        assert getattr(mx.lr_scheduler, name)(**arguments)(update) == pytest.approx(history[update])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: s.LRScheduler(base_lr=0.1, warmup_begin_lr=0.2), "warmup_begin_lr is 0.2"),
        (lambda s: s.LRScheduler(warmup_steps=-1), "warmup_steps is -1"),
        (lambda s: s.LRScheduler(warmup_mode="slow"), "expected 'linear' or 'constant'"),
        (lambda s: s.FactorScheduler(0), "step is 0, expected at least 1"),
        (lambda s: s.FactorScheduler(1, factor=2), "factor is 2, expected at most 1"),
        (lambda s: s.MultiFactorScheduler([3, 3]), "expected increasing numbers from 1"),
        (lambda s: s.MultiFactorScheduler([]), "expected a list"),
        (lambda s: s.PolyScheduler(0), "max_update is 0"),
        (lambda s: s.CosineScheduler(5, warmup_steps=5), "expected more than the 5 warmup_steps"),
    ],
)
def test_refuses_invalid_schedule_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make(mx.lr_scheduler)


def test_the_base_has_no_rule():
    with pytest.raises(NotImplementedError, match="must implement rate"):
        mx.lr_scheduler.LRScheduler()(1)


def test_an_optimizer_that_replaces_the_rate_of_its_schedule_warns():
    schedule = mx.lr_scheduler.FactorScheduler(10, base_lr=0.4)
    with pytest.warns(
        UserWarning, match=r"learning rate, 0\.001, replaces .* base_lr=0\.4, .* pass learning_rate=0\.4"
    ):
        mx.optimizer.Adam(lr_scheduler=schedule)
    assert schedule.base_lr == 0.001
    mx.optimizer.Adam(learning_rate=0.4, lr_scheduler=mx.lr_scheduler.FactorScheduler(10, base_lr=0.4))
    mx.optimizer.SGD(lr_scheduler=mx.lr_scheduler.FactorScheduler(10, base_lr=0.4))
    mx.optimizer.SGD(learning_rate=0.1, lr_scheduler=mx.lr_scheduler.FactorScheduler(10))
