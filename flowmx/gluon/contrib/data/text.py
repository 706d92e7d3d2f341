"""WikiText for language models, read from files in MXNet's layout, which are downloaded if missing."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from flowmx import ndarray as nd
from flowmx.download import data_dir, fetch, repository
from flowmx.errors import ArgumentError
from flowmx.gluon.data.dataset import Dataset
from flowmx.late_binding import late
from flowmx.ndarray import NDArray

if TYPE_CHECKING:
    from flowmx.contrib.text.vocab import Vocabulary

__all__ = ["WikiText2", "WikiText103"]

END_OF_SENTENCE = "<eos>"
_FILES = {"train": "wiki.train.tokens", "validation": "wiki.valid.tokens", "test": "wiki.test.tokens"}


class _WikiText(Dataset[tuple[NDArray, NDArray]]):
    """Sequences of words; the label of each is the same sequence shifted by one word.

    A sample is (data, label), two int32 arrays of shape (seq_len,).

    Args:
        root: the folder with ``wiki.train.tokens``, ``wiki.valid.tokens`` or ``wiki.test.tokens`` (default: the data
            set's folder in the setting ``home``).
        segment: ``train``, ``validation`` or ``test``.
        vocab: the vocabulary (default: one of the words in this segment).
        seq_len: the number of words in a sequence, regardless of sentence ends.

    Raises:
        DownloadError: the file is missing and cannot be downloaded; the message says where to put it.
        ArgumentError: there is no such segment.
    """

    _namespace: ClassVar[str]
    _sha1: ClassVar[str]

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        segment: str = "train",
        vocab: Vocabulary | None = None,
        seq_len: int = 35,
    ) -> None:
        if segment not in _FILES:
            raise ArgumentError(f"{type(self).__name__}: segment is {segment!r}, expected one of {', '.join(_FILES)}")
        self._root = data_dir() / "datasets" / self._namespace if root is None else Path(root).expanduser()
        text = self._file(_FILES[segment]).read_text("utf-8")
        self._counter: Counter[str] = late("contrib.text.utils").count_tokens_from_str(text)
        if vocab is None:
            vocab = late("contrib.text.vocab").Vocabulary(self._counter, reserved_tokens=[END_OF_SENTENCE])
        self._vocab: Vocabulary = vocab
        lines = [line.split() for line in text.splitlines()]
        words = [word for line in lines if line for word in (*line, END_OF_SENTENCE)]
        numbers = np.array(self._vocab.to_indices(words), np.int32)
        length = (len(numbers) - 1) // seq_len * seq_len
        self._data = nd.array(numbers[:length].reshape(-1, seq_len), dtype=np.int32)
        self._label = nd.array(numbers[1 : length + 1].reshape(-1, seq_len), dtype=np.int32)

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary."""
        return self._vocab

    @property
    def frequencies(self) -> Counter[str]:
        """The number of occurrences of each word."""
        return self._counter

    def __getitem__(self, idx: Any) -> tuple[NDArray, NDArray]:
        return self._data[idx], self._label[idx]

    def __len__(self) -> int:
        return len(self._label)

    def _file(self, name: str) -> Path:
        path = self._root / name
        if not path.exists():
            archive = self._root / f"{self._namespace}-v1.zip"
            if not archive.exists():
                fetch(f"{repository()}gluon/dataset/{self._namespace}/{archive.name}", archive, self._sha1)
            _unpack(archive, path)
        return path


def _unpack(archive: Path, path: Path) -> None:
    """Extract one file from an archive, from any folder inside it."""
    with zipfile.ZipFile(archive) as files:
        member = next(member for member in files.namelist() if Path(member).name == path.name)
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        with files.open(member) as source, scratch.open("wb") as target:
            shutil.copyfileobj(source, target)
        scratch.replace(path)


class WikiText2(_WikiText):
    """WikiText-2: two million words of Wikipedia's good articles, in sequences of ``seq_len`` words."""

    _namespace, _sha1 = "wikitext-2", "3c914d17d80b1459be871a5039ac23e752a53cbe"


class WikiText103(_WikiText):
    """WikiText-103: a hundred million words of Wikipedia's good articles; otherwise like :class:`WikiText2`."""

    _namespace, _sha1 = "wikitext-103", "0aec09a7537b58d4bb65362fee27650eeaba625a"
