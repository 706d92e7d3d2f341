"""Embeddings: vectors of the tokens of a vocabulary, read from files such as those of GloVe and fastText."""

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
from typing import Any, ClassVar, cast

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
"""A function that returns the vector of unknown tokens, from its ``shape``."""


@cache
def _file_hashes() -> dict[str, dict[str, dict[str, str]]]:
    """Return the SHA-1 of the published files and archives of each embedding."""
    text = Path(__file__).with_name("files.json").read_text("utf-8")
    return cast("dict[str, dict[str, dict[str, str]]]", json.loads(text))


class _TokenEmbedding(Vocabulary):
    """A vocabulary with a vector for each token.

    Args:
        **kwargs: arguments of `Vocabulary`.

    Attributes:
        vec_len: the length of the vectors.
        idx_to_vec: the vectors, of shape (tokens, ``vec_len``); unknown tokens have the first.
        pretrained_file_name_sha1: the SHA-1 of each published file.
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
        """The vectors, one per row, in the order of the tokens' numbers."""
        return self._idx_to_vec

    def get_vecs_by_tokens(self, tokens: Any, lower_case_backup: bool = False) -> NDArray:
        """Return the vector of a token, or the matrix of the vectors of a list of tokens.

        Args:
            tokens: a token or a list of tokens.
            lower_case_backup: use the lower-case token for a token without a vector.
        """
        names = tokens if isinstance(tokens, list) else [tokens]
        if lower_case_backup:
            names = [token if token in self._token_to_idx else token.lower() for token in names]
        numbers = [self._token_to_idx.get(token, UNKNOWN) for token in names]
        vectors: NDArray = nd.take(self._vectors(), nd.array(numbers))
        return vectors if isinstance(tokens, list) else vectors[0]

    def update_token_vectors(self, tokens: object, new_vectors: NDArray) -> None:
        """Set the vectors of tokens.

        Args:
            tokens: a token or a list of tokens.
            new_vectors: vectors of shape (``vec_len``,) for one token, else (tokens, ``vec_len``).

        Raises:
            AssertionError: the vectors have a different shape (as in MXNet).
            ValueError: a token is unknown.
        """
        names = tokens if isinstance(tokens, list) else [tokens]
        if not isinstance(new_vectors, NDArray):
            raise AssertionError(
                f"update_token_vectors: new_vectors is {type(new_vectors).__name__}, expected an array"
            )
        rows = new_vectors.expand_dims(axis=0) if len(new_vectors.shape) == 1 and len(names) == 1 else new_vectors
        if rows.shape != (len(names), self._vec_len):
            raise AssertionError(
                f"update_token_vectors: new_vectors has shape {new_vectors.shape}, expected "
                f"{(len(names), self._vec_len)}"
            )
        if unknown := [token for token in names if token not in self._token_to_idx]:
            raise ValueError(
                f"update_token_vectors: {unknown[0]!r} is unknown; the vector of all unknown tokens is that of "
                f"{self.unknown_token!r}"
            )
        self._vectors()[nd.array([self._token_to_idx[token] for token in names])] = rows

    def _vectors(self) -> NDArray:
        if self._idx_to_vec is None:
            raise AssertionError(f"{type(self).__name__} has no vectors: no file was read")
        return self._idx_to_vec

    # -- reading ---------------------------------------------------------------------------------------

    @classmethod
    def _check_pretrained_file_names(cls, pretrained_file_name: str) -> None:
        """Check that a file is published; custom embeddings call it, too.

        Raises:
            KeyError: it is not published.
        """
        files = cls.pretrained_file_name_sha1
        if pretrained_file_name not in files:
            near = did_you_mean(pretrained_file_name, files)
            raise KeyError(f"{cls.__name__} has no file {pretrained_file_name!r}, only {', '.join(files)}{near}")

    def _load_embedding(
        self, pretrained_file_path: str | os.PathLike[str], elem_delim: str, init_unknown_vec: Start,
        encoding: str = "utf8",
    ) -> None:  # fmt: skip
        """Read a file with a token and its numbers per line, and add the tokens to the vocabulary.

        Raises:
            ValueError: the file does not exist.
            AssertionError: a line has no numbers, or another count than the others (as in MXNet).
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
                warnings.warn(f"{place}: {token!r} already has a vector, so this one is ignored", stacklevel=4)
            elif len(vector) == 1:
                warnings.warn(f"{place}: {token!r} has one number: a header, which is ignored", stacklevel=4)
            else:
                if rows and len(vector) != len(rows[0]):
                    raise AssertionError(f"{place}: {token!r} has {len(vector)} numbers, and others {len(rows[0])}")
                rows.append(vector)
                self._token_to_idx[token] = len(self._idx_to_token)
                self._idx_to_token.append(token)
        self._vec_len = len(rows[0]) if rows else 0
        before = len(self._idx_to_token) - len(rows)  # the unknown token and the reserved tokens
        table = np.zeros((len(self._idx_to_token), self._vec_len), np.float32)
        table[before:] = rows
        self._idx_to_vec = nd.array(table)
        self._idx_to_vec[UNKNOWN] = init_unknown_vec(shape=self._vec_len) if unknown is None else nd.array(unknown)

    def _build_embedding_for_vocabulary(self, vocabulary: Vocabulary | None) -> None:
        """Keep only the vectors of a vocabulary's tokens, in its order."""
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
        self, token_embeddings: Sequence[_TokenEmbedding], vocab_len: int, vocab_idx_to_token: Sequence[object]
    ) -> None:
        """Concatenate the vectors of tokens in several embeddings."""
        columns = []
        for embedding in token_embeddings:
            first = embedding._vectors()[0:1]
            rest = [embedding.get_vecs_by_tokens(list(vocab_idx_to_token[1:]))] if vocab_len > 1 else []
            columns.append(nd.concat(first, *rest, dim=0))
        self._vec_len = sum(embedding.vec_len for embedding in token_embeddings)
        self._idx_to_vec = nd.concat(*columns, dim=1)


def _expect_vocabulary(vocabulary: object) -> None:
    if not isinstance(vocabulary, Vocabulary):
        raise AssertionError(f"vocabulary is {type(vocabulary).__name__}, expected a contrib.text.vocab.Vocabulary")


def _lines(path: Path, delimiter: str, encoding: str) -> Iterator[tuple[str, str, list[float]]]:
    """Parse a file. Yield (location for messages, token, numbers) for each line."""
    with path.open(encoding=encoding) as file:
        for number, line in enumerate(file, 1):
            token, *vector = line.rstrip().split(delimiter)
            if not vector:
                raise AssertionError(f"{path}, line {number}: expected a token and its numbers, found {token!r}")
            yield f"{path}, line {number}", token, [float(number) for number in vector]


class _PretrainedEmbedding(_TokenEmbedding):
    """An embedding with published files, which are downloaded on demand."""

    pretrained_archive_name_sha1: ClassVar[dict[str, str]]
    _default_file: ClassVar[str]

    def __init__(
        self, pretrained_file_name: str | None = None, embedding_root: str | os.PathLike[str] | None = None,
        init_unknown_vec: Start = nd.zeros, vocabulary: Vocabulary | None = None, **kwargs: object,
    ) -> None:  # fmt: skip
        name = self._default_file if pretrained_file_name is None else pretrained_file_name
        self._check_pretrained_file_names(name)
        super().__init__(**kwargs)
        root = data_dir() / "embeddings" if embedding_root is None else Path(embedding_root).expanduser()
        self._load_embedding(self._file(root, name), " ", init_unknown_vec)
        self._build_embedding_for_vocabulary(vocabulary)

    @classmethod
    def _get_download_file_name(cls, pretrained_file_name: str) -> str:
        raise NotImplementedError(f"{cls.__name__} must define the archive of {pretrained_file_name}")

    @classmethod
    def _file(cls, root: Path, name: str) -> Path:
        """Return the path of a file, after downloading and unpacking it if necessary."""
        folder = root / cls.__name__.lower()
        path = folder / name
        if path.exists() and check_sha1(path, cls.pretrained_file_name_sha1[name]):
            return path
        archive = cls._get_download_file_name(name)
        url = f"{repository()}gluon/embeddings/{cls.__name__.lower()}/{archive}"
        get: Any = download
        local = get(url, str(folder / archive), sha1_hash=cls.pretrained_archive_name_sha1[archive])
        _unpack(Path(local), folder)
        return path


def _unpack(archive: Path, folder: Path) -> None:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as file:
            file.extractall(folder)
    elif archive.suffix == ".gz":
        with tarfile.open(archive, "r:gz") as file:
            file.extractall(folder, filter="data")


_registry = registry.Registry(_TokenEmbedding, "token embedding")


def register(embedding_cls: type[_TokenEmbedding]) -> type[_TokenEmbedding]:
    """Register an embedding under the name of its class; a decorator."""
    return _registry.register(embedding_cls)


def create(embedding_name: str, **kwargs: object) -> _TokenEmbedding:
    """Create an embedding by its case-insensitive name, with the arguments of its class.

    Raises:
        ValueError: an unknown name.
    """
    return _registry.create(embedding_name, **kwargs)


def get_pretrained_file_names(embedding_name: str | None = None) -> Any:
    """Return the files of an embedding, or, without a name, a dict of the files of all embeddings.

    Raises:
        KeyError: an unknown name.
    """
    files = {name: list(cls.pretrained_file_name_sha1) for name, cls in _registry.classes.items()}
    if embedding_name is None:
        return files
    if embedding_name not in files:
        raise KeyError(f"no embedding {embedding_name!r}, expected one of {', '.join(files)}")
    return files[embedding_name]


@register
class GloVe(_PretrainedEmbedding):
    """The vectors of "GloVe: Global Vectors for Word Representation", J. Pennington et al., 2014.

    Args:
        pretrained_file_name: the name of the file (default: ``glove.840B.300d.txt``).
        embedding_root: their folder (default: ``embeddings`` in the folder of the models).
        init_unknown_vec: returns the vector of unknown tokens if the file has none.
        vocabulary: keep only its tokens.
        **kwargs: arguments of `Vocabulary`.

    Raises:
        KeyError: an unknown file.
    """

    pretrained_archive_name_sha1 = _file_hashes()["glove"]["archives"]
    pretrained_file_name_sha1 = _file_hashes()["glove"]["files"]
    _default_file = "glove.840B.300d.txt"

    @classmethod
    def _get_download_file_name(cls, pretrained_file_name: str) -> str:
        kind = pretrained_file_name.split(".")[1]
        return next(name for name in cls.pretrained_archive_name_sha1 if name.split(".")[1] == kind)


@register
class FastText(_PretrainedEmbedding):
    """The vectors of "Enriching Word Vectors with Subword Information", P. Bojanowski et al., 2017.

    The arguments and errors are those of :class:`GloVe`; the default file is ``wiki.simple.vec``.
    """

    pretrained_archive_name_sha1 = _file_hashes()["fasttext"]["archives"]
    pretrained_file_name_sha1 = _file_hashes()["fasttext"]["files"]
    _default_file = "wiki.simple.vec"

    @classmethod
    def _get_download_file_name(cls, pretrained_file_name: str) -> str:
        return f"{pretrained_file_name.rpartition('.')[0]}.zip"


class CustomEmbedding(_TokenEmbedding):
    """Vectors from a custom file: each line has a token and its numbers.

    Args:
        pretrained_file_path: the file.
        elem_delim: the delimiter of token and numbers.
        encoding: the encoding of the file.
        init_unknown_vec: returns the vector of unknown tokens if the file has none.
        vocabulary: keep only its tokens.
        **kwargs: arguments of `Vocabulary`.
    """

    def __init__(
        self, pretrained_file_path: str | os.PathLike[str], elem_delim: str = " ", encoding: str = "utf8",
        init_unknown_vec: Start = nd.zeros, vocabulary: Vocabulary | None = None, **kwargs: object,
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self._load_embedding(pretrained_file_path, elem_delim, init_unknown_vec, encoding)
        self._build_embedding_for_vocabulary(vocabulary)


class CompositeEmbedding(_TokenEmbedding):
    """The concatenated vectors of several embeddings, for the tokens of a vocabulary.

    Args:
        vocabulary: the tokens.
        token_embeddings: an embedding or a list of embeddings.

    Raises:
        AssertionError: an argument is not an embedding (as in MXNet).
    """

    def __init__(self, vocabulary: Vocabulary, token_embeddings: Any) -> None:
        _expect_vocabulary(vocabulary)
        embeddings = token_embeddings if isinstance(token_embeddings, list) else [token_embeddings]
        for embedding in embeddings:
            if not isinstance(embedding, _TokenEmbedding):
                raise AssertionError(f"CompositeEmbedding: expected embeddings, found {type(embedding).__name__}")
        super().__init__()
        self._index_tokens_from_vocabulary(vocabulary)
        self._set_idx_to_vec_by_embeddings(embeddings, len(self), self.idx_to_token)
