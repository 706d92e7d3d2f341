"""Sentences of several lengths as batches, each of one length."""

from __future__ import annotations

import bisect
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowmx import devices
from flowmx import ndarray as nd
from flowmx.data import rng
from flowmx.data.batch_order import check_state
from flowmx.io import DataBatch, DataDesc, DataIter

log = logging.getLogger("flowmx.rnn")


def encode_sentences(
    sentences: Sequence[Sequence[str]],
    vocab: dict[str, int] | None = None,
    invalid_label: int = -1,
    invalid_key: str = "\n",
    start_label: int = 0,
    unknown_token: str | None = None,
) -> tuple[list[list[int]], dict[str, int]]:
    """Words as numbers.

    Args:
        sentences: lists of words.
        vocab: numbers by word; without one, words are numbered as they come.
        invalid_label: the number of ``invalid_key``, which no word gets.
        invalid_key: the padding token.
        start_label: the first number.
        unknown_token: the token of words that a given vocabulary lacks; it is added to it where it is missing.

    Returns:
        the sentences as lists of numbers, and the vocabulary.

    Raises:
        KeyError: a given vocabulary has not a word, and nothing stands for such.
    """
    is_new = vocab is None
    vocab = {invalid_key: invalid_label} if vocab is None else vocab
    number = start_label
    found = []
    for sentence in sentences:
        coded = []
        for word in sentence:
            if word not in vocab:
                if not is_new and not unknown_token:
                    raise KeyError(
                        f"encode_sentences: the vocabulary has no {word!r}: give unknown_token, or another vocabulary"
                    )
                word = unknown_token or word
                if word not in vocab:
                    number += number == invalid_label
                    vocab[word] = number
                    number += 1
            coded.append(vocab[word])
        found.append(coded)
    return found, vocab


class BucketSentenceIter(DataIter):
    """Batches of sentences of one length, for a language model: the label of each word is the word after it.

    Each epoch has a new order, which follows from ``mx.random.seed``. Sentences that fill no batch are left out of an
    epoch, those longer than all buckets of all.

    Args:
        sentences: lists of numbers.
        batch_size: sentences in a batch.
        buckets: the lengths; by default all lengths of which there are enough sentences for a batch.
        invalid_label: the padding value of shorter sentences.
        data_name: the name of the input.
        label_name: the name of the label.
        dtype: of both.
        layout: ``"NT"`` or ``"TN"``: which axis is time.

    Raises:
        ValueError: an unknown layout, or no batch.
    """

    is_instant = True

    def __init__(
        self,
        sentences: Sequence[Sequence[int]],
        batch_size: int,
        buckets: Sequence[int] | None = None,
        invalid_label: int = -1,
        data_name: str = "data",
        label_name: str = "softmax_label",
        dtype: Any = "float32",
        layout: str = "NT",
    ) -> None:
        super().__init__(batch_size)
        if sorted(layout) != ["N", "T"]:
            raise ValueError(f"BucketSentenceIter: layout is {layout!r}, expected 'NT' or 'TN'")
        counts = Counter(map(len, sentences))
        lengths = sorted(buckets or (length for length, count in counts.items() if count >= batch_size))
        self.data_name, self.label_name = data_name, label_name
        self.dtype, self.layout, self.invalid_label = dtype, layout, invalid_label
        self.major_axis = layout.find("N")
        self.data = self._filled(sentences, lengths)
        self.buckets = list(self.data)
        if not self.buckets:
            raise ValueError(
                f"BucketSentenceIter: no length has batch_size = {batch_size} sentences: give buckets, or a smaller one"
            )
        self.default_bucket_key = max(self.buckets)
        self.provide_data = [self._described(data_name, self.default_bucket_key)]
        self.provide_label = [self._described(label_name, self.default_bucket_key)]
        self.idx = [
            (length, start)
            for length, rows in self.data.items()
            for start in range(0, len(rows) - batch_size + 1, batch_size)
        ]
        self.orders = {length: list(range(len(rows))) for length, rows in self.data.items()}
        self.curr_idx = 0
        self.reset()

    def _filled(self, sentences: Sequence[Sequence[int]], lengths: list[int]) -> dict[int, Any]:
        """The sentences of each length, filled up."""
        found: dict[int, list[Any]] = {length: [] for length in lengths}
        left_out = 0
        for sentence in sentences:
            place = bisect.bisect_left(lengths, len(sentence))
            if place == len(lengths):
                left_out += 1
                continue
            row = np.full(lengths[place], self.invalid_label, self.dtype)
            row[: len(sentence)] = sentence
            found[lengths[place]].append(row)
        if left_out:
            log.warning("BucketSentenceIter: %d sentences are longer than the largest bucket: left out", left_out)
        return {length: np.asarray(rows, self.dtype) for length, rows in found.items() if rows}

    def _described(self, name: str, length: int) -> DataDesc:
        shape = (self.batch_size, length) if self.major_axis == 0 else (length, self.batch_size)
        return DataDesc(name, shape, self.dtype, self.layout)

    def reset(self) -> None:
        """Begin an epoch, in a new order."""
        self.curr_idx = 0
        generator = rng.current()
        generator.shuffle(self.idx)
        for order in self.orders.values():
            generator.shuffle(order)

    def next(self) -> DataBatch:
        if self.curr_idx == len(self.idx):
            raise StopIteration
        length, start = self.idx[self.curr_idx]
        self.curr_idx += 1
        data = self.data[length][self.orders[length][start : start + self.batch_size]]
        label = np.full_like(data, self.invalid_label)
        label[:, :-1] = data[:, 1:]
        return DataBatch(
            [self._array(data)], [self._array(label)], 0, bucket_key=length,
            provide_data=[self._described(self.data_name, length)],
            provide_label=[self._described(self.label_name, length)],
        )  # fmt: skip

    def _array(self, values: Any) -> nd.NDArray:
        return nd.array(values if self.major_axis == 0 else values.T, devices.cpu(), self.dtype)

    def state(self) -> dict[str, Any]:
        """The position in the epoch; orders of later epochs come from the stream that ``mx.random.seed`` restarts."""
        return {
            "batch_size": self.batch_size, "buckets": self.buckets, "sentences": self._counts(), "at": self.curr_idx,
            "idx": [list(each) for each in self.idx], "orders": [list(order) for order in self.orders.values()],
        }  # fmt: skip

    def set_state(self, state: Mapping[str, Any]) -> None:
        own = {"batch_size": self.batch_size, "buckets": self.buckets, "sentences": self._counts()}
        check_state(dict(state), own)
        self.curr_idx = int(state["at"])
        self.idx = [(length, start) for length, start in state["idx"]]
        self.orders = dict(zip(self.buckets, map(list, state["orders"]), strict=True))

    def _counts(self) -> list[int]:
        return [len(rows) for rows in self.data.values()]
