"""The scheduling policy: which tokens of which sequences are in the next step. This module does no I/O, reads no clock.

Batching is continuous: each step has the next token of every running sequence, and a limited number of tokens of
prompts, which are split into chunks. So a prompt of any length makes a step longer by at most one chunk. While other
sequences wait for their next tokens, a chunk is limited by the time that it takes (``step_times.py``). Prompts that
are computed at the same time share the chunk; a short one does not wait for a long one.

Sequences are ranked by priority, then by arrival. The first of them run, as many as there are places and pages. If the
pages run out, the sequence of the lowest rank is preempted: its pages are released, and its tokens are computed again
later. Because a sequence is preempted only for one of a higher rank, the first sequence always advances.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from flowmx.errors import Overloaded
from flowmx.generation.adapter_registry import NO_ADAPTER, Adapter
from flowmx.generation.pages import OutOfPages, PageCopy, PagePool, PageTable
from flowmx.generation.step_batch import StepBatch
from flowmx.generation.step_times import StepTimes

__all__ = ["Part", "Scheduler", "Step", "TokenSequence"]


class TokenSequence:
    """A prompt and the tokens generated for it.

    Args:
        prompt: at least one token.
        priority: sequences of a higher priority run first.
        adapter: the adapter with which its tokens are computed.

    Attributes:
        adapter: as passed.
        tokens: the prompt and the generated tokens.
        prompt_length: the number of tokens of the prompt.
        drafts: guesses of the next tokens, which the next step verifies.
        paused: whether it stays out of steps for now.
        finished: whether it has left the scheduler.
        table: its pages; none while it waits.
        cached: the number of tokens of the prompt that shared pages contained when it first ran.
    """

    def __init__(self, prompt: Sequence[int], priority: int = 0, adapter: Adapter = NO_ADAPTER) -> None:
        if not prompt:
            raise ValueError("the prompt has no tokens: pass at least one, such as the tokenizer's first token")
        self.tokens = list(prompt)
        self.prompt_length = len(self.tokens)
        self.priority, self.adapter = priority, adapter
        self.drafts: Sequence[int] = ()
        self.paused = self.finished = self.cancelled = False
        self.table: PageTable | None = None
        self.cached: int | None = None
        self.rank = (-priority, 0)
        self.missing_pages = 0

    @property
    def generated(self) -> int:
        """The number of generated tokens."""
        return len(self.tokens) - self.prompt_length


class Part(NamedTuple):
    """The tokens of one sequence in a step.

    Attributes:
        sequence: the sequence.
        start: the position of the first token.
        tokens: the tokens, drafts included.
        rows: the number of rows of logits, for the last tokens; 0 inside a prompt.
        first_row: the index of its first row among the rows of the step.
    """

    sequence: TokenSequence
    start: int
    tokens: Sequence[int]
    rows: int
    first_row: int


class Step(NamedTuple):
    """One step: the copies to make first, and the tokens.

    Attributes:
        copies: pages to copy before the step.
        batch: the tokens, for the decoder.
        parts: the tokens by sequence.
    """

    copies: list[PageCopy]
    batch: StepBatch
    parts: list[Part]


class Scheduler:
    """Forms the steps of a decoder.

    Call :meth:`schedule`, compute the step, and call :meth:`complete` for each part, in turns.

    Args:
        pool: the pages of the cache.
        max_sequences: the maximum number of sequences in a step.
        prefill_tokens: the maximum number of tokens of prompts, and of drafts, in a step.
        max_requests: the maximum number of unfinished sequences, waiting ones included.

    Raises:
        ValueError: a limit is not positive.
    """

    def __init__(
        self, pool: PagePool, max_sequences: int = 16, prefill_tokens: int = 256, max_requests: int = 1024
    ) -> None:
        for name, value in (
            ("max_sequences", max_sequences),
            ("prefill_tokens", prefill_tokens),
            ("max_requests", max_requests),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self.pool = pool
        self.max_sequences, self.prefill_tokens, self.max_requests = max_sequences, prefill_tokens, max_requests
        self.admitting = True
        """Whether waiting sequences may start; a drain turns it off."""
        self.preemptions = 0
        self.times = StepTimes()
        """The times of earlier steps, which limit the chunks of prompts; :meth:`StepTimes.record` adds one."""
        self._sequences: list[TokenSequence] = []
        self._arrivals = 0

    @property
    def capacity(self) -> int:
        """The number of tokens that the whole cache contains."""
        return self.pool.count * self.pool.page_size

    @property
    def running(self) -> int:
        """The number of sequences with pages."""
        return sum(sequence.table is not None for sequence in self._sequences)

    @property
    def waiting(self) -> int:
        """The number of sequences without pages."""
        return len(self._sequences) - self.running

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[TokenSequence]:
        return iter(self._sequences)

    # -- changes between steps -------------------------------------------------------------------------

    def add(self, sequence: TokenSequence, retry_after: float = 1.0) -> None:
        """Queue a sequence.

        Args:
            sequence: a new sequence.
            retry_after: the attribute of the error.

        Raises:
            Overloaded: there are too many sequences.
            ValueError: the prompt is longer than the cache.
        """
        if sequence.prompt_length > self.capacity:
            raise ValueError(
                f"the prompt has {sequence.prompt_length} tokens, and the cache has room for {self.capacity}: shorten "
                "the prompt or pass more pages"
            )
        if len(self._sequences) >= self.max_requests:
            raise Overloaded(
                f"{len(self._sequences)} requests are unfinished, at most {self.max_requests} may be: try again later",
                retry_after,
            )
        self._arrivals += 1
        sequence.rank = (-sequence.priority, self._arrivals)
        insort(self._sequences, sequence, key=_rank)

    def cancel(self, sequence: TokenSequence) -> None:
        """Remove a sequence at the next step."""
        sequence.cancelled = True

    def finish(self, sequence: TokenSequence) -> None:
        """Remove a sequence and release its pages; do nothing if it is not here."""
        if not sequence.finished and sequence in self._sequences:
            self._sequences.remove(sequence)
        sequence.finished = True
        self._release(sequence)

    def reset(self, root: bytes | None = None) -> None:
        """Compute all sequences again, because the content of the cache is lost or obsolete.

        Args:
            root: as for :meth:`PagePool.forget`; None keeps the present one.
        """
        for sequence in self._sequences:
            self._release(sequence)
        self.pool.forget(self.pool.root if root is None else root)

    # -- one step --------------------------------------------------------------------------------------

    def schedule(self) -> Step | None:
        """Return the next step, or None if no sequence can advance. Cancelled sequences lose their pages first."""
        for sequence in [each for each in self._sequences if each.cancelled]:
            self.finish(sequence)
        copies: list[PageCopy] = []
        chosen = self._choose(copies)
        parts = _parts(self._lengths(chosen))
        return Step(copies, _batch(parts, self.pool.page_size), parts) if parts else None

    def complete(self, part: Part, tokens: Sequence[int]) -> None:
        """Record the result of a part of a step; do nothing if the sequence has finished since.

        Args:
            part: the part.
            tokens: the sampled tokens, none inside a prompt; all but the last are drafts that were correct.
        """
        sequence = part.sequence
        if sequence.table is None:
            return
        sequence.tokens += tokens
        sequence.drafts = ()
        drafts = max(part.rows - 1, 0)
        correct = max(len(tokens) - 1, 0)
        sequence.table.advance(sequence.tokens, part.start + len(part.tokens) - drafts + correct)

    def _choose(self, copies: list[PageCopy]) -> list[TokenSequence]:
        """Return the sequences of the next step, which have the pages that they need."""
        chosen: list[TokenSequence] = []
        admitting = self.admitting
        active = [sequence for sequence in self._sequences if not sequence.paused]
        for sequence in active:
            if len(chosen) == self.max_sequences:
                break
            if sequence.table is None:
                admitting = admitting and self._admit(sequence, sequence is active[0], chosen)
                if not admitting:
                    continue
            elif not self._extend(sequence, copies):
                continue
            chosen.append(sequence)
        return chosen

    def _admit(self, sequence: TokenSequence, is_first: bool, chosen: Sequence[TokenSequence]) -> bool:
        """Give a waiting sequence the pages of all its tokens, if it may start."""
        victims = [other for other in self._victims(sequence) if self._may_replace(sequence, other, is_first)]
        spare = len(chosen)  # each may need a page soon; otherwise the new sequence would be preempted at once
        if not is_first and sequence.missing_pages > self._room(victims):
            return False
        table = PageTable(self.pool, sequence.adapter.salt)
        cached = table.share_prefix(sequence.tokens)
        sequence.missing_pages = table.missing(len(sequence.tokens)) + spare
        room = self._room(victims)
        while self.pool.available < sequence.missing_pages <= room and victims:
            self._preempt(victims.pop())
        if self.pool.available < sequence.missing_pages - (spare if is_first else 0):
            table.clear()
            return False
        table.reserve(len(sequence.tokens))
        sequence.table, sequence.drafts = table, ()
        if sequence.cached is None:
            sequence.cached = cached
        return True

    def _room(self, victims: Sequence[TokenSequence]) -> int:
        """Return the maximum number of pages that are available without the victims."""
        return self.pool.available + sum(len(other.table.pages) for other in victims if other.table)

    def _may_replace(self, sequence: TokenSequence, other: TokenSequence, is_first: bool) -> bool:
        return is_first or other.paused or other.priority < sequence.priority

    def _extend(self, sequence: TokenSequence, copies: list[PageCopy]) -> bool:
        """Give a running sequence the page of its next token, or preempt it."""
        assert sequence.table is not None
        try:
            copies += sequence.table.reserve(len(sequence.tokens) + len(sequence.drafts))
            return True
        except OutOfPages:
            sequence.drafts = ()
        victims = self._victims(sequence)
        while True:
            try:
                copies += sequence.table.reserve(len(sequence.tokens))
                return True
            except OutOfPages:
                if not victims:
                    self._preempt(sequence)
                    return False
                self._preempt(victims.pop())

    def _victims(self, sequence: TokenSequence) -> list[TokenSequence]:
        """Return the sequences that may lose their pages to another, the first to lose them last."""
        lower = [
            other for other in self._sequences
            if other.table is not None and other is not sequence and (other.paused or other.rank > sequence.rank)
        ]  # fmt: skip
        return sorted(lower, key=lambda other: (other.paused, other.rank))

    def _preempt(self, sequence: TokenSequence) -> None:
        self.preemptions += 1
        self._release(sequence)

    def _release(self, sequence: TokenSequence) -> None:
        sequence.drafts = ()
        sequence.missing_pages = 0
        if sequence.table is not None:
            sequence.table.clear()
            sequence.table = None

    def _lengths(self, chosen: Sequence[TokenSequence]) -> Iterator[tuple[TokenSequence, int]]:
        """Iterate over the sequences and the number of their next tokens, without drafts, that are in the step."""
        prompts = [each for each in chosen if _pending(each) > 1]
        limit = self.times.prompt_tokens(len(chosen) - len(prompts), self.prefill_tokens)
        chunks = dict(self._chunks(prompts, limit))
        budget = self.prefill_tokens - sum(chunks.values())
        for sequence in chosen:
            length = chunks.get(id(sequence), 1)
            if len(sequence.drafts) > budget:
                sequence.drafts = ()
            budget -= len(sequence.drafts)
            if length:
                yield sequence, length

    def _chunks(self, prompts: Sequence[TokenSequence], limit: int) -> Iterator[tuple[int, int]]:
        """Divide the tokens of a step among prompts: higher priorities first, equal parts within a priority.

        The first prompt gets at least one token.
        """
        budget = limit - 1
        first = prompts[0] if prompts else None
        prompts = sorted(prompts, key=lambda each: (-each.priority, _pending(each), each.rank))
        for index, sequence in enumerate(prompts):
            equals = sum(other.priority == sequence.priority for other in prompts[index:])
            share = min(_pending(sequence), -(-budget // equals))
            budget -= share
            yield id(sequence), min(_pending(sequence), share + (sequence is first))


def _rank(sequence: TokenSequence) -> tuple[int, int]:
    return sequence.rank


def _pending(sequence: TokenSequence) -> int:
    """Return the number of tokens that are not in the cache."""
    return len(sequence.tokens) - (sequence.table.length if sequence.table else 0)


def _parts(lengths: Iterable[tuple[TokenSequence, int]]) -> list[Part]:
    parts, row = [], 0
    for sequence, length in lengths:
        assert sequence.table is not None
        start = sequence.table.length
        is_last = start + length == len(sequence.tokens)
        rows = 1 + len(sequence.drafts) if is_last else 0
        tokens = sequence.tokens[start : start + length]
        parts.append(Part(sequence, start, [*tokens, *sequence.drafts] if is_last else tokens, rows, row))
        row += rows
    return parts


def _batch(parts: Sequence[Part], page_size: int) -> StepBatch:
    counts = np.array([len(part.tokens) for part in parts], np.int32)
    ends = np.cumsum(counts, dtype=np.int32)
    starts = np.array([part.start for part in parts], np.int32)
    sequences = np.repeat(np.arange(len(parts), dtype=np.int32), counts)
    positions = np.arange(len(sequences), dtype=np.int32) + np.repeat(starts - (ends - counts), counts)
    pages = [part.sequence.table.pages for part in parts if part.sequence.table is not None]
    tables = np.zeros((len(parts), max(map(len, pages), default=0)), np.int32)
    for row, table in enumerate(pages):
        tables[row, : len(table)] = table
    slots = tables[sequences, positions // page_size] * np.int32(page_size) + positions % page_size
    rows = [np.arange(end - part.rows, end, dtype=np.int32) for part, end in zip(parts, ends, strict=True) if part.rows]
    tokens = np.array([token for part in parts for token in part.tokens], np.int32)
    used = np.array([part.sequence.adapter.slot for part in parts], np.int32)
    adapters = np.repeat(used, counts) if (used >= 0).any() else None
    return StepBatch(
        tokens, positions, slots, sequences, tables, np.concatenate(rows) if rows else np.empty(0, np.int32), adapters
    )
