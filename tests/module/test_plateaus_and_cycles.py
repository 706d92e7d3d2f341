"""`OneCycleScheduler` and `ReduceLROnPlateau`, against the learning rates that PyTorch's schedules have.

The expected curves are computed by transcriptions of PyTorch's documented formulas; a few values are literal.
"""

import math

import pytest

import flowmx as mx
from flowmx.lr_scheduler import OneCycleScheduler, ReduceLROnPlateau


def one_cycle(total, peak, pct=0.3, strategy="cos", div=25.0, final=1e4, three=False):
    """Return the learning rates of torch.optim.lr_scheduler.OneCycleLR, one for each step."""
    initial = peak / div
    phases = [(0.0, pct * total - 1, initial, peak)]
    if three:
        phases += [(pct * total - 1, 2 * pct * total - 2, peak, initial)]
        phases += [(2 * pct * total - 2, total - 1, initial, initial / final)]
    else:
        phases += [(pct * total - 1, total - 1, peak, initial / final)]
    rates = []
    for step in range(total):
        start, end, low, high = next(phase for phase in phases if step <= phase[1] or phase is phases[-1])
        done = (step - start) / (end - start)
        curve = (1 - math.cos(math.pi * done)) / 2 if strategy == "cos" else done
        rates.append(low + (high - low) * curve)
    return rates


@pytest.mark.parametrize("strategy", ["cos", "linear"])
@pytest.mark.parametrize("three", [False, True])
@pytest.mark.parametrize("total", [10, 37])
def test_one_cycle_has_the_rates_of_pytorch(strategy, three, total):
    schedule = OneCycleScheduler(total, 0.4, anneal_strategy=strategy, three_phase=three)
    expected = one_cycle(total, 0.4, strategy=strategy, three=three)
    assert [schedule(update) for update in range(1, total + 1)] == pytest.approx(expected)
    assert schedule(total + 100) == pytest.approx(expected[-1])


def test_one_cycle_begins_low_peaks_and_ends_lower():
    schedule = OneCycleScheduler(100, base_lr=1.0)
    assert schedule(1) == pytest.approx(0.04)
    assert schedule(30) == pytest.approx(1.0)  # pct_start * max_update
    assert schedule(100) == pytest.approx(4e-6)


def test_an_optimizers_learning_rate_is_the_peak():
    optimizer = mx.optimizer.create("sgd", learning_rate=2.0, lr_scheduler=OneCycleScheduler(100))
    optimizer.num_update = 30
    assert optimizer.learning_rate == pytest.approx(2.0)


def run(schedule, values):
    return [schedule.step(value) for value in values]


def test_a_plateau_of_more_than_patience_values_reduces_the_rate():
    schedule = ReduceLROnPlateau(factor=0.5, patience=2, base_lr=0.8)
    # Improvements of less than 0.01 % do not count.
    assert run(schedule, [1.0, 0.5, 0.5, 0.49999, 0.5, 0.6, 0.7, 0.8]) == [0.8, 0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2]
    assert schedule.best == 0.5
    assert schedule(12345) == 0.2


def test_values_in_the_cooldown_do_not_count():
    schedule = ReduceLROnPlateau("max", factor=0.5, patience=0, cooldown=2, base_lr=0.8)
    assert run(schedule, [1, 1, 1, 1, 1]) == [0.8, 0.4, 0.4, 0.4, 0.2]


def test_the_rate_has_a_minimum_and_nan_is_no_improvement():
    schedule = ReduceLROnPlateau(factor=0.1, patience=0, min_lr=0.01, threshold_mode="abs", base_lr=0.2)
    assert run(schedule, [1.0, math.nan, math.nan, 2.0]) == pytest.approx([0.2, 0.02, 0.01, 0.01])


def test_the_trainers_rate_follows_and_its_file_restores_the_plateau(tmp_path):
    def make():
        net = mx.gluon.nn.Dense(1, in_units=2)
        net.initialize()
        schedule = ReduceLROnPlateau(factor=0.5, patience=1, base_lr=0.4)
        return net, schedule, mx.gluon.Trainer(net.collect_params(), "sgd", {"lr_scheduler": schedule})

    _, schedule, trainer = make()
    run(schedule, [1.0, 1.0, 1.0, 0.9, 1.0])
    assert trainer.learning_rate == 0.2
    trainer.save_states(tmp_path / "sgd.states")
    _, _, other = make()
    other.load_states(tmp_path / "sgd.states")
    restored = other.optimizer.lr_scheduler
    assert (restored.best, restored.num_bad_epochs, other.learning_rate) == (0.9, 1, 0.2)
    assert restored.step(1.0) == schedule.step(1.0) == 0.1


async def test_an_array_is_awaited():
    schedule = ReduceLROnPlateau(factor=0.5, patience=0, base_lr=1.0)
    assert await schedule.step_async(mx.nd.ones((4,)).mean()) == 1.0
    assert await schedule.step_async(mx.nd.ones((4,)).mean()) == 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OneCycleScheduler(0), "max_update is 0, expected a positive int"),
        (lambda: OneCycleScheduler(10, pct_start=30), "pct_start is 30, expected a fraction"),
        (lambda: OneCycleScheduler(10, anneal_strategy="exp"), "anneal_strategy is 'exp', expected 'cos' or"),
        (lambda: OneCycleScheduler(10, div_factor=0), "div_factor is 0, expected a positive"),
        (lambda: ReduceLROnPlateau("low"), "mode is 'low', expected 'min' or 'max'"),
        (lambda: ReduceLROnPlateau(factor=10), "factor is 10, expected a number between 0 and 1"),
        (lambda: ReduceLROnPlateau(patience=-1), "patience is -1"),
        (lambda: ReduceLROnPlateau(threshold_mode="x"), "threshold_mode is 'x'"),
        (lambda: ReduceLROnPlateau().step([1, 2]), "expected a number, such as metric.get"),
    ],
)
def test_refuses_invalid_arguments(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
