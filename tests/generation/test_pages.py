"""The pages of a cache have one owner or many readers, and none is lost."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flowmx.generation.pages import OutOfPages, PagePool, PageTable, pages_within

PAGES, SIZE = 7, 3


def written(table, tokens):
    """Reserve and record tokens, and return the copies."""
    copies = table.reserve(len(tokens))
    table.advance(tokens, len(tokens))
    return copies


class Cache(RuleBasedStateMachine):
    """Sequences over a cache whose memory is simulated: every sequence must read back its own tokens."""

    def __init__(self):
        super().__init__()
        self.pool = PagePool(PAGES, SIZE)
        self.memory = [[None] * SIZE for _ in range(PAGES)]
        self.sequences = []

    def write(self, table, tokens, start):
        for copy in table.reserve(len(tokens)):
            self.memory[copy.target] = list(self.memory[copy.source])
        for place in range(start, len(tokens)):
            self.memory[table.pages[place // SIZE]][place % SIZE] = tokens[place]
        table.advance(tokens, len(tokens))

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=8))
    def open(self, tokens):
        table = PageTable(self.pool)
        start = table.share_prefix(tokens)
        assert start < len(tokens)
        try:
            self.write(table, tokens, start)
        except OutOfPages:
            assert table.missing(len(tokens)) > self.pool.available
            table.clear()
        else:
            self.sequences.append((table, tokens))

    @rule(index=st.integers(0, 100), token=st.integers(0, 1))
    def append(self, index, token):
        if self.sequences:
            table, tokens = self.sequences[index % len(self.sequences)]
            before = list(table.pages)
            try:
                self.write(table, [*tokens, token], len(tokens))
            except OutOfPages:
                assert table.pages == before
            else:
                tokens.append(token)

    @rule(index=st.integers(0, 100))
    def fork(self, index):
        if self.sequences:
            table, tokens = self.sequences[index % len(self.sequences)]
            self.sequences.append((table.fork(), list(tokens)))

    @rule(index=st.integers(0, 100))
    def close(self, index):
        if self.sequences:
            self.sequences.pop(index % len(self.sequences))[0].clear()

    @rule(version=st.binary(max_size=1))
    def change_weights(self, version):
        self.pool.forget(version)
        assert self.pool.published == 0

    @invariant()
    def sequences_read_their_own_tokens(self):
        for table, tokens in self.sequences:
            content = [self.memory[page][place] for page in table.pages for place in range(SIZE)]
            assert content[: len(tokens)] == tokens

    @invariant()
    def every_page_is_counted(self):
        references = Counter(page for table, _ in self.sequences for page in table.pages)
        assert [self.pool.references(page) for page in range(PAGES)] == [references[page] for page in range(PAGES)]
        assert self.pool.used == len(references)
        for table, _ in self.sequences:
            assert len(set(table.pages)) == len(table.pages)


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_texts_with_the_same_beginning_share_pages():
    pool = PagePool(8, 4)
    first, second = PageTable(pool), PageTable(pool)
    written(first, list(range(10)))
    assert second.share_prefix([*range(8), 99]) == 8
    assert second.pages == first.pages[:2]
    assert pool.used == 3


def test_a_whole_shared_text_still_computes_its_last_token():
    pool = PagePool(8, 4)
    first, second = PageTable(pool), PageTable(pool)
    written(first, list(range(8)))
    assert second.share_prefix(list(range(8))) == 4


def test_a_page_of_the_same_tokens_after_different_ones_is_not_shared():
    pool = PagePool(8, 2)
    first, second = PageTable(pool), PageTable(pool)
    written(first, [1, 2, 3, 4])
    assert second.share_prefix([9, 9, 3, 4, 5]) == 0


def test_a_fork_copies_the_page_that_it_writes():
    pool = PagePool(4, 4)
    first = PageTable(pool)
    written(first, [1, 2])
    second = first.fork()
    (copy,) = written(second, [1, 2, 3])
    assert (copy.source, copy.target) == (first.pages[0], second.pages[0])
    assert written(first, [1, 2, 4]) == []


def test_the_least_recently_used_prefix_is_evicted():
    pool = PagePool(3, 1)
    for tokens in ([1], [2], [3]):
        table = PageTable(pool)
        written(table, tokens)
        table.clear()
    again = PageTable(pool)
    assert again.share_prefix([1, 0]) == 1
    again.clear()
    written(PageTable(pool), [4])
    assert PageTable(pool).share_prefix([1, 0]) == 1
    assert PageTable(pool).share_prefix([2, 0]) == 0


def test_new_weights_end_sharing_with_older_sequences():
    pool = PagePool(8, 2)
    older = PageTable(pool)
    written(older, [1, 2])
    pool.forget(b"1")
    written(older, [1, 2, 3, 4])
    assert PageTable(pool).share_prefix([1, 2, 3, 4, 5]) == 0


def test_wrong_uses_are_refused():
    with pytest.raises(ValueError, match="at least one page of at least one token, got 0 pages"):
        PagePool(0, 4)
    pool = PagePool(1, 1)
    page = pool.allocate()
    with pytest.raises(OutOfPages, match="all 1 pages"):
        pool.allocate()
    pool.release(page)
    with pytest.raises(ValueError, match="released twice"):
        pool.release(page)
    with pytest.raises(ValueError, match="is free: allocate it"):
        pool.retain(page)
    table = PageTable(pool)
    written(table, [1])
    with pytest.raises(ValueError, match="clear it first"):
        table.share_prefix([1, 2])


def test_pages_within_a_byte_limit():
    assert pages_within(1000, 300) == 3
    with pytest.raises(ValueError, match="max_bytes=10 is less than one page of the cache: pass at least 300"):
        pages_within(10, 300)
