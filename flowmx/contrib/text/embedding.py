"""Vectors for the tokens of a vocabulary, read from files such as GloVe's and fastText's."""

from __future__ import annotations

import json
import logging
import os
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from flowmx import ndarray as nd
from flowmx import registry
from flowmx.contrib.text.vocab import UNKNOWN, Vocabulary
from flowmx.download import data_dir, repository
from flowmx.gluon.utils import check_sha1, download
from flowmx.ndarray import NDArray
from flowmx.suggestions import did_you_mean

__all__ = [
    "CompositeEmbedding",
    "CustomEmbedding",
    "FastText",
    "GloVe",
    "create",
    "get_pretrained_file_names",
    "register",
]

Start = Callable[..., NDArray]
"""Makes the vector of unknown tokens, from its ``shape``."""


@cache
def _published() -> dict[str, dict[str, dict[str, str]]]:
    """By embedding, the SHA-1 of its files and of the archives that they are published in."""
    found: dict[str, dict[str, dict[str, str]]] = json.loads(Path(__file__).with_name("files.json").read_text("utf-8"))
    return found


class _TokenEmbedding(Vocabulary):
    """A vocabulary with a vector for each token.

    Args:
        **kwargs: those of a `Vocabulary`.

    Attributes:
        vec_len: the length of the vectors.
        idx_to_vec: the vectors, of shape (tokens, ``vec_len``); unknown tokens have the first.
        pretrained_file_name_sha1: the SHA-1 of each published file; empty where none is published.
    """

    pretrained_file_name_sha1: ClassVar[dict[str, str]] = {}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._vec_len = 0
        self._idx_to_vec: NDArray | None = None

    @property
    def vec_len(self) -> int:
        """The length of the vectors."""
        return self._vec_len

    @property
    def idx_to_vec(self) -> NDArray | None:
        """The vectors, one a row, in the order of the tokens' numbers."""
        return self._idx_to_vec

    def get_vecs_by_tokens(self, tokens: Any, lower_case_backup: bool = False) -> NDArray:
        """The vector of a token, or the matrix of those of a list of tokens.

        Args:
            tokens: a token or a list of them.
            lower_case_backup: look for a token in lower case where it has no vector as it is.
        """
        given = tokens if isinstance(tokens, list) else [tokens]
        if lower_case_backup:
            given = [token if token in self._token_to_idx else token.lower() for token in given]
        numbers = [self._token_to_idx.get(token, UNKNOWN) for token in given]
        found: NDArray = nd.take(self._vectors(), nd.array(numbers))
        return found if isinstance(tokens, list) else found[0]

    def update_token_vectors(self, tokens: Any, new_vectors: NDArray) -> None:
        """Give tokens other vectors.

        Args:
            tokens: a token or a list of them.
            new_vectors: of shape (``vec_len``,) for one token, else (tokens, ``vec_len``).

        Raises:
            AssertionError: the vectors have another shape (what MXNet raises).
            ValueError: a token is unknown.
        """
        given = tokens if isinstance(tokens, list) else [tokens]
        if not isinstance(new_vectors, NDArray):
            raise AssertionError(
                f"update_token_vectors: new_vectors is {type(new_vectors).__name__}, expected an array"
            )
        rows = new_vectors.expand_dims(axis=0) if len(new_vectors.shape) == 1 and len(given) == 1 else new_vectors
        if rows.shape != (len(given), self._vec_len):
            raise AssertionError(
                f"update_token_vectors: new_vectors has shape {new_vectors.shape}, expected "
                f"{(len(given), self._vec_len)}"
            )
        if unknown := [token for token in given if token not in self._token_to_idx]:
            raise ValueError(
                f"update_token_vectors: {unknown[0]!r} is unknown; the vector of all unknown tokens is that of "
                f"{self.unknown_token!r}"
            )
        self._vectors()[nd.array([self._token_to_idx[token] for token in given])] = rows

    def _vectors(self) -> NDArray:
        if self._idx_to_vec is None:
            raise AssertionError(f"{type(self).__name__} has no vectors yet: it reads no file")
        return self._idx_to_vec

    # -- reading ---------------------------------------------------------------------------------------

    @classmethod
    def _check_pretrained_file_names(cls, pretrained_file_name: str) -> None:
        """Refuse the name of a file that is not published; embeddings of one's own call it too.

        Raises:
            KeyError: there is no such file.
        """
        known = cls.pretrained_file_name_sha1
        if pretrained_file_name not in known:
            near = did_you_mean(pretrained_file_name, known)
            raise KeyError(f"{cls.__name__} has no file {pretrained_file_name!r}, only {', '.join(known)}{near}")

    def _load_embedding(
        self, pretrained_file_path: str | os.PathLike[str], elem_delim: str, init_unknown_vec: Start,
        encoding: str = "utf8",
    ) -> None:  # fmt: skip
        """Read a file of a token and its numbers a line; every token in it gets a number.

        Raises:
            ValueError: there is no such file.
            AssertionError: a line has no numbers, or not as many as the others (what MXNet raises).
        """
        path = Path(pretrained_file_path).expanduser()
        if not path.is_file():
            raise ValueError(f"there is no file of vectors {str(path)!r}")
        logging.info("reading vectors of tokens from %s", path)
        unknown: list[float] | None = None
        rows: list[list[float]] = []
        for place, token, vector in _lines(path, elem_delim, encoding):
            if token == self.unknown_token and unknown is None:
                unknown = vector
            elif token in self._token_to_idx:
                warnings.warn(f"{place}: {token!r} has a vector already, so this one is left out", stacklevel=4)
            elif len(vector) == 1:
                warnings.warn(f"{place}: {token!r} has one number: a header, which is left out", stacklevel=4)
            else:
                if rows and len(vector) != len(rows[0]):
                    raise AssertionError(f"{place}: {token!r} has {len(vector)} numbers, and others {len(rows[0])}")
                rows.append(vector)
                self._token_to_idx[token] = len(self._idx_to_token)
                self._idx_to_token.append(token)
        self._vec_len = len(rows[0]) if rows else 0
        before = len(self._idx_to_token) - len(rows)  # the unknown token, and reserved ones
        table = np.zeros((len(self._idx_to_token), self._vec_len), np.float32)
        table[before:] = rows
        self._idx_to_vec = nd.array(table)
        self._idx_to_vec[UNKNOWN] = init_unknown_vec(shape=self._vec_len) if unknown is None else nd.array(unknown)

    def _build_embedding_for_vocabulary(self, vocabulary: Vocabulary | None) -> None:
        """Keep the vectors of a vocabulary's tokens alone, under its numbers."""
        if vocabulary is not None:
            _expect_vocabulary(vocabulary)
            self._set_idx_to_vec_by_embeddings([self], len(vocabulary), vocabulary.idx_to_token)
            self._index_tokens_from_vocabulary(vocabulary)

    def _index_tokens_from_vocabulary(self, vocabulary: Vocabulary) -> None:
        self._token_to_idx = dict(vocabulary.token_to_idx)
        self._idx_to_token = list(vocabulary.idx_to_token)
        self._unknown_token = vocabulary.unknown_token
        self._reserved_tokens = None if vocabulary.reserved_tokens is None else list(vocabulary.reserved_tokens)

    def _set_idx_to_vec_by_embeddings(
        self, token_embeddings: Sequence[_TokenEmbedding], vocab_len: int, vocab_idx_to_token: Sequence[Any]
    ) -> None:
        """Concatenate the vectors that embeddings have for tokens."""
        columns = []
        for each in token_embeddings:
            first = each._vectors()[0:1]
            rest = [each.get_vecs_by_tokens(list(vocab_idx_to_token[1:]))] if vocab_len > 1 else []
            columns.append(nd.concat(first, *rest, dim=0))
        self._vec_len = sum(each.vec_len for each in token_embeddings)
        self._idx_to_vec = nd.concat(*columns, dim=1)


def _expect_vocabulary(vocabulary: Any) -> None:
    if not isinstance(vocabulary, Vocabulary):
        raise AssertionError(f"vocabulary is {type(vocabulary).__name__}, expected a contrib.text.vocab.Vocabulary")


def _lines(path: Path, delimiter: str, encoding: str) -> Iterator[tuple[str, str, list[float]]]:
    """Parse a file: iterate over (location for messages, token, numbers) of each line."""
    with path.open(encoding=encoding) as file:
        for number, line in enumerate(file, 1):
            token, *vector = line.rstrip().split(delimiter)
            if not vector:
                raise AssertionError(f"{path}, line {number}: expected a token and its numbers, found {token!r}")
            yield f"{path}, line {number}", token, [float(each) for each in vector]


class _Published(_TokenEmbedding):
    """An embedding whose files are published; they are fetched where they are missing."""

    pretrained_archive_name_sha1: ClassVar[dict[str, str]]
    _default_file: ClassVar[str]

    def __init__(
        self, pretrained_file_name: str | None = None, embedding_root: str | os.PathLike[str] | None = None,
        init_unknown_vec: Start = nd.zeros, vocabulary: Vocabulary | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        name = self._default_file if pretrained_file_name is None else pretrained_file_name
        self._check_pretrained_file_names(name)
        super().__init__(**kwargs)
        root = data_dir() / "embeddings" if embedding_root is None else Path(embedding_root).expanduser()
        self._load_embedding(self._file(root, name), " ", init_unknown_vec)
        self._build_embedding_for_vocabulary(vocabulary)

    @classmethod
    def _get_download_file_name(cls, pretrained_file_name: str) -> str:
        raise NotImplementedError(f"{cls.__name__} must say in which archive {pretrained_file_name} is")

    @classmethod
    def _file(cls, root: Path, name: str) -> Path:
        """The path of a file, fetched and unpacked first where it is not there."""
        folder = root / cls.__name__.lower()
        path = folder / name
        if path.exists() and check_sha1(path, cls.pretrained_file_name_sha1[name]):
            return path
        archive = cls._get_download_file_name(name)
        url = f"{repository()}gluon/embeddings/{cls.__name__.lower()}/{archive}"
        get: Any = download
        fetched = get(url, str(folder / archive), sha1_hash=cls.pretrained_archive_name_sha1[archive])
        _unpack(Path(fetched), folder)
        return path


def _unpack(archive: Path, folder: Path) -> None:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
    elif archive.suffix == ".gz":
        with tarfile.open(archive, "r:gz") as packed:
            packed.extractall(folder, filter="data")


_registry = registry.Registry(_TokenEmbedding, "token embedding")


def register(embedding_cls: type[_TokenEmbedding]) -> type[_TokenEmbedding]:
    """Make an embedding known by the name of its class; a decorator."""
    return _registry.register(embedding_cls)


def create(embedding_name: str, **kwargs: Any) -> _TokenEmbedding:
    """Make an embedding by its name, in any case, from the arguments of its class.

    Raises:
        ValueError: there is none of that name.
    """
    return _registry.create(embedding_name, **kwargs)


def get_pretrained_file_names(embedding_name: str | None = None) -> Any:
    """The files of an embedding, or, without a name, a dict from each name to its files.

    Raises:
        KeyError: there is none of that name.
    """
    found = {name: list(cls.pretrained_file_name_sha1) for name, cls in _registry.classes.items()}
    if embedding_name is None:
        return found
    if embedding_name not in found:
        raise KeyError(f"there is no embedding {embedding_name!r}: there are {', '.join(found)}")
    return found[embedding_name]


@register
class GloVe(_Published):
    """The vectors of "GloVe: Global Vectors for Word Representation", J. Pennington et al., 2014.

    Args:
        pretrained_file_name: the name of the file (default: ``glove.840B.300d.txt``).
        embedding_root: their folder (default: ``embeddings`` in that of the models).
        init_unknown_vec: makes the vector of unknown tokens where the file has none.
        vocabulary: keep its tokens alone.
        **kwargs: those of a `Vocabulary`.

    Raises:
        KeyError: there is no such file.
    """

    pretrained_archive_name_sha1 = _published()["glove"]["archives"]
    pretrained_file_name_sha1 = _published()["glove"]["files"]
    _default_file = "glove.840B.300d.txt"

    @classmethod
    def _get_download_file_name(cls, pretrained_file_name: str) -> str:
        kind = pretrained_file_name.split(".")[1]
        return next(each for each in cls.pretrained_archive_name_sha1 if each.split(".")[1] == kind)


@register
class FastText(_Published):
    """The vectors of "Enriching Word Vectors with Subword Information", P. Bojanowski et al., 2017.

    The arguments and errors are those of :class:`GloVe`; the default file is ``wiki.simple.vec``.
    """

    pretrained_archive_name_sha1 = _published()["fasttext"]["archives"]
    pretrained_file_name_sha1 = _published()["fasttext"]["files"]
    _default_file = "wiki.simple.vec"

    @classmethod
    def _get_download_file_name(cls, pretrained_file_name: str) -> str:
        return f"{pretrained_file_name.rpartition('.')[0]}.zip"


class CustomEmbedding(_TokenEmbedding):
    """Vectors from a file of one's own: a line for each token, of the token and its numbers.

    Args:
        pretrained_file_path: the file.
        elem_delim: the delimiter of token and numbers.
        encoding: the file's.
        init_unknown_vec: makes the vector of unknown tokens where the file has none.
        vocabulary: keep its tokens alone.
        **kwargs: those of a `Vocabulary`.
    """

    def __init__(
        self, pretrained_file_path: str | os.PathLike[str], elem_delim: str = " ", encoding: str = "utf8",
        init_unknown_vec: Start = nd.zeros, vocabulary: Vocabulary | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self._load_embedding(pretrained_file_path, elem_delim, init_unknown_vec, encoding)
        self._build_embedding_for_vocabulary(vocabulary)


class CompositeEmbedding(_TokenEmbedding):
    """The concatenated vectors of several embeddings, for the tokens of a vocabulary.

    Args:
        vocabulary: the tokens.
        token_embeddings: an embedding or a list of them.

    Raises:
        AssertionError: one of them is none (what MXNet raises).
    """

    def __init__(self, vocabulary: Vocabulary, token_embeddings: Any) -> None:
        _expect_vocabulary(vocabulary)
        several = token_embeddings if isinstance(token_embeddings, list) else [token_embeddings]
        for each in several:
            if not isinstance(each, _TokenEmbedding):
                raise AssertionError(f"CompositeEmbedding: expected embeddings, found {type(each).__name__}")
        super().__init__()
        self._index_tokens_from_vocabulary(vocabulary)
        self._set_idx_to_vec_by_embeddings(several, len(self), self.idx_to_token)
