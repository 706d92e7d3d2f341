"""Each sequence gets its own tokens, whatever shares its steps, and the first always advances."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowmx.errors import Overloaded
from flowmx.generation.pages import PagePool
from flowmx.generation.scheduling import Scheduler, TokenSequence

VOCABULARY = 3


def next_token(tokens):
    """Return the token that the simulated model generates after these."""
    return sum(place * token for place, token in enumerate(tokens, 1)) % VOCABULARY


class Model:
    """A decoder whose cache contains the tokens themselves, so that a wrong page shows."""

    def __init__(self, pages, page_size):
        self.page_size = page_size
        self.cache = np.full(pages * page_size, -1)

    def run(self, step):
        """Return the token that follows each row."""
        size = self.page_size
        for source, target in step.copies:
            self.cache[target * size : (target + 1) * size] = self.cache[source * size : (source + 1) * size]
        batch = step.batch
        assert len(set(batch.slots)) == len(batch.slots)
        self.cache[batch.slots] = batch.tokens
        return [next_token(self._read(batch, row)) for row in batch.rows]

    def _read(self, batch, row):
        places = np.arange(batch.positions[row] + 1)
        pages = batch.tables[batch.sequences[row]][places // self.page_size]
        return [int(token) for token in self.cache[pages * self.page_size + places % self.page_size]]


def advance(scheduler, model, lengths):
    """Run one step; finish the sequences that have their number of tokens. Return the step."""
    step = scheduler.schedule()
    if step is None:
        return None
    results = model.run(step)
    for part in step.parts:
        rows = results[part.first_row : part.first_row + part.rows]
        drafts = part.tokens[len(part.tokens) - part.rows + 1 :] if part.rows else []
        correct = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(drafts, rows, strict=False)))
        new = rows[: correct + 1][: lengths[part.sequence] - part.sequence.generated]
        scheduler.complete(part, new)
        if part.sequence.generated == lengths[part.sequence]:
            scheduler.finish(part.sequence)
    return step


def expected(prompt, length):
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(next_token(tokens))
    return tokens


requests = st.lists(
    st.tuples(
        st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12),
        st.integers(1, 6),  # tokens to generate
        st.integers(0, 2),  # priority
        st.integers(0, 8),  # the step of its arrival
        st.integers(0, 20),  # the step at which it is cancelled
        st.sampled_from([None, None, (2, 3), (1, 9)]),  # the steps between which its reader is slow
        st.booleans(),  # whether it has drafts
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=80, deadline=None)
@given(requests, st.integers(5, 9), st.integers(2, 4), st.integers(1, 4), st.integers(1, 9))
def test_any_schedule_gives_each_sequence_its_own_tokens(requests, pages, page_size, places, chunk):
    pages = max(pages, -(-18 // page_size))
    pool, model = PagePool(pages, page_size), Model(pages, page_size)
    scheduler = Scheduler(pool, places, chunk)
    lengths, sequences = {}, []
    for prompt, length, priority, *_ in requests:
        sequence = TokenSequence(prompt, priority)
        lengths[sequence] = length
        sequences.append(sequence)
    for now in range(400):
        for sequence, (*_, arrival, end, slow, drafts) in zip(sequences, requests, strict=True):
            if now == arrival:
                scheduler.add(sequence)
            if now == end and now > arrival:
                scheduler.cancel(sequence)
            sequence.paused = slow is not None and slow[0] <= now < slow[1]
            if drafts and sequence.generated:
                right = expected(sequence.tokens, 2)[-2:]
                sequence.drafts = [right, right[:1], [right[0], right[1] + 1], []][now % 4]
        first = next((each for each in scheduler if not each.paused and not each.cancelled), None)
        before = first and (first.generated, first.table.length if first.table else 0)
        step = advance(scheduler, model, lengths)
        if first is not None:
            assert step is not None
            assert first.finished or (first.generated, first.table.length) > before
        if step is not None:
            assert len(step.parts) <= places
            assert sum(len(part.tokens) - 1 for part in step.parts) <= chunk + places
        assert not any(each.cancelled for each in scheduler)
        if now > 20 and not len(scheduler):
            break
    assert all(sequence.finished for sequence in sequences)
    assert pool.used == 0
    for sequence, (prompt, *_) in zip(sequences, requests, strict=True):
        assert sequence.tokens == expected(prompt, sequence.generated)
        assert sequence.cancelled or sequence.generated == lengths[sequence]


def scheduler_with(pages=8, page_size=4, **limits):
    return Scheduler(PagePool(pages, page_size), **limits), Model(pages, page_size)


def start(scheduler, prompt, priority=0):
    sequence = TokenSequence(prompt, priority)
    scheduler.add(sequence)
    return sequence


def test_a_long_prompt_is_split_and_a_short_one_overtakes_it():
    scheduler, model = scheduler_with(pages=40, prefill_tokens=8)
    long, short = start(scheduler, [1] * 100), start(scheduler, [2, 1])
    step = advance(scheduler, model, {long: 5, short: 5})
    assert [(part.sequence, len(part.tokens)) for part in step.parts] == [(long, 6), (short, 2)]
    assert short.generated == 1
    step = advance(scheduler, model, {long: 5, short: 5})
    assert [(part.sequence, len(part.tokens)) for part in step.parts] == [(long, 8), (short, 1)]
    assert short.generated == 2


def test_a_higher_priority_takes_the_pages_of_a_lower_one():
    scheduler, model = scheduler_with(pages=2)
    low = start(scheduler, [1] * 7)
    lengths = {low: 2}
    advance(scheduler, model, lengths)
    high = start(scheduler, [2] * 6, priority=1)
    lengths[high] = 1
    (part,) = advance(scheduler, model, lengths).parts
    assert part.sequence is high
    assert scheduler.preemptions == 1
    while len(scheduler):
        advance(scheduler, model, lengths)
    assert low.tokens == expected([1] * 7, 2)


def test_the_slow_reader_loses_its_pages_first():
    scheduler, model = scheduler_with(pages=3)
    older, younger, slow = (start(scheduler, [token] * 3) for token in (1, 2, 0))
    lengths = {older: 3, younger: 2, slow: 2}
    advance(scheduler, model, lengths)
    older.rank, slow.paused = older.rank, True
    advance(scheduler, model, lengths)
    advance(scheduler, model, lengths)
    assert slow.table is None
    assert older.finished
    slow.paused = False
    while len(scheduler):
        advance(scheduler, model, lengths)
    assert slow.tokens == expected([0] * 3, 2)


def test_cancelled_sequences_lose_their_pages_at_the_next_step():
    scheduler, model = scheduler_with()
    sequence = start(scheduler, [1] * 9)
    advance(scheduler, model, {sequence: 9})
    assert scheduler.pool.used == 3
    scheduler.cancel(sequence)
    assert scheduler.schedule() is None
    assert (scheduler.pool.used, len(scheduler)) == (0, 0)


def test_the_same_prompt_is_computed_once():
    scheduler, model = scheduler_with(pages=8, page_size=2)
    first = start(scheduler, [1, 2, 1, 0, 1])
    while len(scheduler):
        advance(scheduler, model, {first: 1})
    second = start(scheduler, [1, 2, 1, 0, 2])
    (part,) = advance(scheduler, model, {second: 1}).parts
    assert (second.cached, part.tokens) == (4, [2])
    assert second.tokens == expected([1, 2, 1, 0, 2], 1)


def test_after_a_reset_the_sequences_are_computed_again():
    scheduler, model = scheduler_with()
    sequence = start(scheduler, [1, 2, 1, 0, 1])
    advance(scheduler, model, {sequence: 3})
    scheduler.reset(b"new weights")
    model.cache[:] = -1
    while len(scheduler):
        advance(scheduler, model, {sequence: 3})
    assert sequence.tokens == expected([1, 2, 1, 0, 1], 3)


def test_limits():
    scheduler, _ = scheduler_with(pages=2, page_size=4, max_requests=2)
    start(scheduler, [1])
    start(scheduler, [1])
    with pytest.raises(Overloaded, match="2 requests are unfinished, at most 2 may be: try again later") as caught:
        start(scheduler, [1])
    assert caught.value.retry_after == 1.0
    with pytest.raises(ValueError, match="the prompt has 9 tokens, and the cache has room for 8"):
        start(scheduler, [1] * 9)
    with pytest.raises(ValueError, match="the prompt has no tokens"):
        TokenSequence([])
    with pytest.raises(ValueError, match="max_sequences must be at least 1, not 0"):
        scheduler_with(max_sequences=0)
