"""``mx.contrib.text``: vocabularies, and vectors for their tokens."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest

import flowmx as mx
from flowmx.contrib import text

WORDS = Counter(["b", "b", "b", "c", "c", "a"])


def test_tokens_are_counted():
    count = text.utils.count_tokens_from_str
    assert count(" Life is great !\nlife is good . \n", to_lower=True)["life"] == 2
    counts = Counter(["is"])
    assert count("*is*good*\n", r"\*", "\n", counter_to_update=counts) is counts
    assert counts == {"is": 2, "good": 1}


def test_the_most_frequent_tokens_come_first():
    vocab = text.vocab.Vocabulary(WORDS, reserved_tokens=["<pad>"])
    assert vocab.idx_to_token == ["<unk>", "<pad>", "b", "c", "a"]
    assert vocab.to_indices(["a", "x"]) == [4, 0]
    assert vocab.to_indices("b") == 2
    assert vocab.to_tokens([2, 0]) == ["b", "<unk>"]
    assert len(text.vocab.Vocabulary(WORDS, most_freq_count=2)) == 3
    assert text.vocab.Vocabulary(WORDS, min_freq=2).idx_to_token == ["<unk>", "b", "c"]
    with pytest.raises(ValueError, match="no token has the number"):
        vocab.to_tokens(9)


@pytest.mark.parametrize(
    "arguments",
    [{"min_freq": 0}, {"counter": {"a": 1}}, {"reserved_tokens": ["a", "a"]}, {"reserved_tokens": ["<unk>"]}],
)
def test_bad_vocabularies_are_refused(arguments):
    with pytest.raises(AssertionError, match="expected"):
        text.vocab.Vocabulary(**arguments)


@pytest.fixture
def vectors(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("a 1 2\nb 3 4\nc 5 6\n")
    return path


def test_vectors_are_read_from_a_file(vectors):
    embedding = text.embedding.CustomEmbedding(vectors)
    assert (len(embedding), embedding.vec_len) == (4, 2)
    assert embedding.idx_to_vec.asnumpy().tolist() == [[0, 0], [1, 2], [3, 4], [5, 6]]
    assert embedding.get_vecs_by_tokens("b").asnumpy().tolist() == [3, 4]
    assert embedding.get_vecs_by_tokens(["A", "c"], lower_case_backup=True).asnumpy().tolist() == [[1, 2], [5, 6]]
    embedding.update_token_vectors(["a", "b"], mx.nd.array([[7, 7], [8, 8]]))
    assert embedding.get_vecs_by_tokens(["b", "x"]).asnumpy().tolist() == [[8, 8], [0, 0]]
    with pytest.raises(ValueError, match="unknown"):
        embedding.update_token_vectors("x", mx.nd.ones(2))
    with pytest.raises(AssertionError, match="shape"):
        embedding.update_token_vectors("a", mx.nd.ones(3))


def test_values_other_than_a_vocabulary_are_refused(vectors):
    with pytest.raises(AssertionError, match=r"vocabulary is Counter, expected a contrib\.text\.vocab\.Vocabulary"):
        text.embedding.CustomEmbedding(vectors, vocabulary=Counter("abc"))


def test_vectors_for_a_vocabulary(vectors):
    vocab = text.vocab.Vocabulary(WORDS)
    embedding = text.embedding.CustomEmbedding(vectors, init_unknown_vec=mx.nd.ones, vocabulary=vocab)
    assert embedding.idx_to_vec.asnumpy().tolist() == [[1, 1], [3, 4], [5, 6], [1, 2]]
    both = text.embedding.CompositeEmbedding(vocab, [embedding, text.embedding.CustomEmbedding(vectors)])
    assert both.get_vecs_by_tokens("b").asnumpy().tolist() == [3, 4, 3, 4]
    assert both.to_indices("b") == 1


def test_a_bad_file_of_vectors_is_refused(tmp_path):
    (tmp_path / "bad.txt").write_text("a 1 2\nb 3\nc 4 5 6\n")
    with pytest.warns(UserWarning, match="header"), pytest.raises(AssertionError, match="3 numbers, and others 2"):
        text.embedding.CustomEmbedding(tmp_path / "bad.txt")
    with pytest.raises(ValueError, match="no file"):
        text.embedding.CustomEmbedding(tmp_path / "missing.txt")


def test_published_files_are_known_by_name():
    names = text.embedding.get_pretrained_file_names()
    assert "glove.6B.50d.txt" in names["glove"]
    assert "wiki.en.vec" in text.embedding.get_pretrained_file_names("fasttext")
    for name, file_name in (("glove", "glove.6B.50d.txt"), ("fasttext", "wiki.simple.vec")):
        with pytest.raises(KeyError, match=f"has no file 'nonsense', only .*{file_name}"):
            text.embedding.create(name, pretrained_file_name="nonsense")
    with pytest.raises(KeyError, match=r"did you mean 'glove\.6B\.50d\.txt'"):
        text.embedding.GloVe("glove.6b.50d.txt")
    with pytest.raises(KeyError, match=r"no file 'glove\.6B\.50d\.txt'"):
        text.embedding.FastText("glove.6B.50d.txt")
    with pytest.raises(KeyError, match="no embedding"):
        text.embedding.get_pretrained_file_names("nonsense")


def test_a_custom_embedding_names_its_files():
    class Own(text.embedding._TokenEmbedding):
        pretrained_file_name_sha1: ClassVar[dict[str, str]] = {"own.txt": "0" * 40}

    Own._check_pretrained_file_names("own.txt")
    with pytest.raises(KeyError, match=r"Own has no file 'file\.vec', only own\.txt"):
        Own._check_pretrained_file_names("file.vec")
