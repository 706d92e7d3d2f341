"""Batches of sentences, grouped by length."""

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
    """Encode words as numbers.

    Args:
        sentences: lists of words.
        vocab: numbers by word; without it, words are numbered in order of appearance.
        invalid_label: the number of ``invalid_key``; no word gets it.
        invalid_key: the padding token.
        start_label: the first number.
        unknown_token: the token of words that are not in ``vocab``; added to ``vocab`` if missing.

    Returns:
        The sentences as lists of numbers, and the vocabulary.

    Raises:
        KeyError: a word is not in ``vocab``, and there is no ``unknown_token``.
    """
    is_new = vocab is None
    vocab = {invalid_key: invalid_label} if vocab is None else vocab
    number = start_label
    results = []
    for sentence in sentences:
        numbers = []
        for word in sentence:
            if word not in vocab:
                if not is_new and not unknown_token:
                    raise KeyError(
                        f"encode_sentences: the vocabulary has no {word!r}: pass unknown_token, or another vocabulary"
                    )
                word = unknown_token or word
                if word not in vocab:
                    number += number == invalid_label
                    vocab[word] = number
                    number += 1
            numbers.append(vocab[word])
        results.append(numbers)
    return results, vocab


class BucketSentenceIter(DataIter):
    """Batches of sentences of the same length, for a language model: the label of each word is the next word.

    Each epoch has a new order, from Python's generator (batches) and NumPy's (sentences), as in MXNet. An incomplete
    batch is dropped in each epoch; sentences longer than all buckets are dropped entirely.

    Args:
        sentences: lists of numbers.
        batch_size: the number of sentences in a batch.
        buckets: the lengths; by default all lengths with enough sentences for a batch.
        invalid_label: the padding value of shorter sentences.
        data_name: the name of the input.
        label_name: the name of the label.
        dtype: the element type of both.
        layout: ``"NT"`` or ``"TN"``, where T is the time axis.

    Raises:
        ValueError: the layout is unknown, or there is no batch.
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
        self.data = self._group_by_bucket(sentences, lengths)
        self.buckets = list(self.data)
        if not self.buckets:
            raise ValueError(
                f"BucketSentenceIter: no length has batch_size = {batch_size} sentences: pass buckets, or fewer"
            )
        self.default_bucket_key = max(self.buckets)
        self.provide_data = [self._describe(data_name, self.default_bucket_key)]
        self.provide_label = [self._describe(label_name, self.default_bucket_key)]
        self.idx = [
            (length, start)
            for length, rows in self.data.items()
            for start in range(0, len(rows) - batch_size + 1, batch_size)
        ]
        self.orders = {length: list(range(len(rows))) for length, rows in self.data.items()}
        self.curr_idx = 0
        self.reset()

    def _group_by_bucket(self, sentences: Sequence[Sequence[int]], lengths: list[int]) -> dict[int, Any]:
        """Return the sentences of each bucket, padded."""
        buckets: dict[int, list[Any]] = {length: [] for length in lengths}
        drop_count = 0
        for sentence in sentences:
            index = bisect.bisect_left(lengths, len(sentence))
            if index == len(lengths):
                drop_count += 1
                continue
            row = np.full(lengths[index], self.invalid_label, self.dtype)
            row[: len(sentence)] = sentence
            buckets[lengths[index]].append(row)
        if drop_count:
            log.warning("BucketSentenceIter: %d sentences are longer than the largest bucket: dropped", drop_count)
        return {length: np.asarray(rows, self.dtype) for length, rows in buckets.items() if rows}

    def _describe(self, name: str, length: int) -> DataDesc:
        shape = (self.batch_size, length) if self.major_axis == 0 else (length, self.batch_size)
        return DataDesc(name, shape, self.dtype, self.layout)

    def reset(self) -> None:
        """Begin an epoch, in a new order."""
        self.curr_idx = 0
        rng.python().shuffle(self.idx)
        for order in self.orders.values():
            rng.numpy().shuffle(order)

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
            provide_data=[self._describe(self.data_name, length)],
            provide_label=[self._describe(self.label_name, length)],
        )  # fmt: skip

    def _array(self, values: Any) -> nd.NDArray:
        return nd.array(values if self.major_axis == 0 else values.T, devices.cpu(), self.dtype)

    def state(self) -> dict[str, Any]:
        """Return the position in the epoch; orders of later epochs come from Python's and NumPy's generators."""
        return {
            "batch_size": self.batch_size, "buckets": self.buckets, "sentences": self._counts(), "at": self.curr_idx,
            "idx": [list(pair) for pair in self.idx], "orders": [list(order) for order in self.orders.values()],
        }  # fmt: skip

    def set_state(self, state: Mapping[str, Any]) -> None:
        expected = {"batch_size": self.batch_size, "buckets": self.buckets, "sentences": self._counts()}
        check_state(dict(state), expected)
        self.curr_idx = int(state["at"])
        self.idx = [(length, start) for length, start in state["idx"]]
        self.orders = dict(zip(self.buckets, map(list, state["orders"]), strict=True))

    def _counts(self) -> list[int]:
        return [len(rows) for rows in self.data.values()]
