"""The number of tokens of prompts that fit into a step with the tokens of others."""

import pytest

from flowmx.generation.pages import PagePool
from flowmx.generation.scheduling import Scheduler, TokenSequence
from flowmx.generation.step_times import StepTimes


def measured(**seconds):
    times = StepTimes()
    for name, value in seconds.items():
        times.record(int(name[1:]), value)
    return times


@pytest.mark.parametrize(
    ("times", "others", "most", "expected"),
    [
        (measured(), 16, 256, 256),  # nothing is known yet
        (measured(t16=0.1, t512=9.0), 0, 256, 256),  # nobody waits
        (measured(t16=0.1, t64=0.2, t128=0.4, t256=0.8), 16, 256, 112),  # up to four steps
        (measured(t16=0.1), 16, 256, 48),  # at most in proportion
        (measured(t1=0.1), 1, 256, 16),  # the minimum
        (measured(t1=0.1), 1, 7, 7),
        (measured(t16=1e-4, t512=0.01), 16, 256, 256),  # short steps disturb nobody
        (measured(t16=1e-3, t512=0.03), 16, 5000, 304),  # in 20 ms
    ],
)
def test_the_tokens_that_join_a_step(times, others, most, expected):
    assert times.prompt_tokens(others, most) == expected


def test_a_pause_of_the_process_changes_little():
    times = measured(t16=0.1, t64=0.2, t128=0.4)
    times.record(16, 100.0)
    assert times.estimate(16) == pytest.approx(0.125)
    times.record(128, 0.0)
    assert times.estimate(128) == pytest.approx(0.32)


def test_the_tokens_of_others_wait_for_a_part_of_a_long_prompt_only():
    scheduler = Scheduler(PagePool(200, 4), max_sequences=17, prefill_tokens=256)
    for number in range(16):
        scheduler.add(TokenSequence([number]))
    for part in scheduler.schedule().parts:
        scheduler.complete(part, [1])
    for tokens, seconds in ((16, 0.1), (64, 0.2), (128, 0.4), (256, 0.8)):
        scheduler.times.record(tokens, seconds)
    scheduler.add(TokenSequence(range(300)))
    lengths = []
    for _ in range(3):
        step = scheduler.schedule()
        lengths.append([len(part.tokens) for part in step.parts])
        for part in step.parts:
            scheduler.complete(part, [1] * part.rows)
    assert lengths == [[1] * 16 + [112], [1] * 16 + [112], [1] * 16 + [76]]
