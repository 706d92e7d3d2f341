"""Decode steps over a paged cache compute what the network computes for whole texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from flowmx.generation import PagedDecoder, StepBatch
from flowmx.gluon.model_zoo import from_pretrained, text

FOLDER = Path(__file__).parent.parent / "fixtures" / "huggingface"
TOKENS = np.load(FOLDER / "expected.npz")["tokens"]
COUNT, LENGTH = TOKENS.shape
CAUSAL = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma3")
SIZE = 4
TABLES = np.array([[5, 2, 7], [1, 0, 3], [9, 8, 11]], np.int32)


def batch(places, rows=None, tables=TABLES):
    """Return the batch of some places (sequence, position)."""
    sequences, positions = np.array(places, np.int32).T
    slots = tables[sequences, positions // SIZE] * SIZE + positions % SIZE
    rows = np.arange(len(places)) if rows is None else np.array(rows)
    tokens = TOKENS[sequences, positions].astype(np.int32)
    return StepBatch(tokens, positions, slots, sequences, tables, rows.astype(np.int32))


def chunks(*lengths):
    """Return the places of all sequences in chunks of these lengths."""
    ends = np.cumsum(lengths)
    return [
        [(sequence, place) for sequence in range(COUNT) for place in range(end - length, end)]
        for length, end in zip(lengths, ends, strict=True)
    ]


@pytest.mark.parametrize(("dtype", "atol"), [("float32", 1e-5), ("bfloat16", 0.05), ("float16", 0.02), ("int8", 0.1)])
@pytest.mark.parametrize("name", CAUSAL)
def test_chunks_of_a_prompt_have_the_logits_of_the_whole(name, dtype, atol):
    net = from_pretrained(FOLDER / name)
    expected = net(mx.nd.array(TOKENS)).asnumpy()
    for lengths in ([LENGTH], [4, 1, 3, 1], [1] * LENGTH):
        decoder = PagedDecoder(net, 12, SIZE, dtype)
        for places in chunks(*lengths):
            logits = decoder.step(batch(places)).asnumpy()
            np.testing.assert_allclose(logits, [expected[place] for place in places], rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_greedy_tokens_are_those_of_the_dense_network(name):
    net = from_pretrained(FOLDER / name)
    text, written, decoder = TOKENS[0, :4].tolist(), 0, PagedDecoder(net, 12, SIZE)
    table = np.array([[3, 1, 10]], np.int32)
    while len(text) < 12:
        positions = np.arange(written, len(text), dtype=np.int32)
        slots = table[0, positions // SIZE] * SIZE + positions % SIZE
        tokens = np.array(text[written:], np.int32)
        last = np.array([len(tokens) - 1], np.int32)
        logits = decoder.step(StepBatch(tokens, positions, slots, np.zeros_like(tokens), table, last))
        assert logits.shape == (1, 20)
        written = len(text)
        text.append(int(logits.asnumpy().argmax()))
        dense = net(mx.nd.array([text[:-1]])).asnumpy()[0, -1]
        assert text[-1] == dense.argmax()


def test_sequences_of_a_batch_do_not_depend_on_each_other():
    net = from_pretrained(FOLDER / "llama")
    alone, together = PagedDecoder(net, 12, SIZE), PagedDecoder(net, 12, SIZE)
    prompt = [(0, place) for place in range(7)]
    expected = alone.step(batch(prompt, [6])).asnumpy()
    together.step(batch([(2, place) for place in range(LENGTH)], []))
    logits = together.step(batch([(1, 0), *prompt, (2, 8)], [7])).asnumpy()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-6)


def test_a_copied_page_is_read_like_the_original():
    decoder = PagedDecoder(from_pretrained(FOLDER / "llama"), 12, SIZE)
    expected = decoder.step(batch([(0, place) for place in range(6)], [5])).asnumpy()
    decoder.copy_page(5, 4)
    other = np.array([[4, 6, 7]], np.int32)
    logits = decoder.step(batch([(0, 4), (0, 5)], [1], other)).asnumpy()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-6)
    with pytest.raises(IndexError, match="there is no page 12, only 0 to 11"):
        decoder.copy_page(0, 12)


def test_a_page_of_numbers_that_are_no_numbers_is_written_again():
    net = from_pretrained(FOLDER / "llama")
    decoder = PagedDecoder(net, 12, SIZE)
    expected = decoder.step(batch([(0, 0), (0, 1)])).asnumpy()
    weights = net.llama.words.weight.data().asnumpy()
    net.llama.words.weight.set_data(mx.nd.array(np.full_like(weights, np.nan)))
    assert np.isnan(decoder.step(batch([(0, place) for place in range(8)])).asnumpy()).all()
    net.llama.words.weight.set_data(mx.nd.array(weights))
    np.testing.assert_array_equal(decoder.step(batch([(0, 0), (0, 1)])).asnumpy(), expected)


def test_steps_see_changed_weights():
    net = from_pretrained(FOLDER / "llama")
    decoder = PagedDecoder(net, 12, SIZE)
    before = decoder.step(batch([(0, 0)])).asnumpy()
    gamma = net.llama.norm.gamma
    gamma.set_data(2 * gamma.data())
    np.testing.assert_allclose(decoder.step(batch([(0, 0)])).asnumpy(), 2 * before, rtol=1e-5)


def test_parameters_are_replaced_by_name():
    net = from_pretrained(FOLDER / "llama")
    decoder, gamma = PagedDecoder(net, 12, SIZE), net.llama.norm.gamma
    before = decoder.step(batch([(0, 0)])).asnumpy()
    decoder.set_parameters({gamma.name: 2 * gamma.data()})
    np.testing.assert_allclose(decoder.step(batch([(0, 0)])).asnumpy(), 2 * before, rtol=1e-5)
    with pytest.raises(ValueError, match="no parameter 'gama'"):
        decoder.set_parameters({gamma.name: mx.nd.ones(8), "gama": mx.nd.ones(8)})
    with pytest.raises(ValueError, match=r"has the shape \(3,\), expected \(8,\)"):
        decoder.set_parameters({gamma.name: mx.nd.ones(3)})
    np.testing.assert_allclose(decoder.step(batch([(0, 0)])).asnumpy(), 2 * before, rtol=1e-5)


def test_a_cleared_cache_is_usable_after_a_failed_step():
    net = from_pretrained(FOLDER / "llama")
    decoder = PagedDecoder(net, 12, SIZE)
    expected = decoder.step(batch([(0, 0)])).asnumpy()
    failed = mx.nd.Custom(mx.nd.ones(8), op_type="fails_for_decoder")
    good = net.llama.norm.gamma.data().copy()
    name = net.llama.norm.gamma.name
    decoder.set_parameters({name: failed})
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a failure of the weights"):
            decoder.step(batch([(0, 0)])).asnumpy()
    decoder.set_parameters({name: good})
    decoder.clear()
    np.testing.assert_array_equal(decoder.step(batch([(0, 0)])).asnumpy(), expected)


class Fails(mx.operator.CustomOp):
    def forward(self, *args, **kwargs):
        raise RuntimeError("a failure of the weights")


@mx.operator.register("fails_for_decoder")
class FailsProp(mx.operator.CustomOpProp):
    def create_operator(self, *args):
        return Fails()


def test_a_step_is_a_native_run_apart_from_the_angles_of_the_positions():
    decoder = PagedDecoder(from_pretrained(FOLDER / "llama"), 12, 16)
    table, zero = np.array([[3]], np.int32), np.zeros(1, np.int32)
    for place in range(10):
        one = np.full(1, place, np.int32)
        decoder.step(StepBatch(one, one, 48 + one, zero, table, zero)).wait_to_read()
    (compiled,) = decoder._step._compiled.values()
    (graph,) = compiled.op._compiled.values()
    text = graph.results.plan.explain()
    lines = text[text.index("Not part of native runs:") :].split("\n\n")[0].splitlines()[1:]
    assert all("(cos)" in line or "(sin)" in line for line in lines), lines


def test_no_pages_are_written_by_padding():
    decoder = PagedDecoder(from_pretrained(FOLDER / "llama"), 12, SIZE)
    expected = decoder.step(batch([(0, 0), (0, 1), (0, 2)], [2])).asnumpy()
    for _ in range(2):
        np.testing.assert_array_equal(decoder.step(batch([(0, 2)])).asnumpy(), expected)
        decoder.step(batch([(1, 0), (1, 1), (1, 2)], []))  # a fourth token is padding


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_networks_in_16_bits(dtype):
    net = from_pretrained(FOLDER / "qwen3", dtype=dtype)
    logits = PagedDecoder(net, 12, SIZE, dtype).step(batch(chunks(LENGTH)[0]))
    assert str(np.dtype(logits.dtype)) == dtype
    expected = from_pretrained(FOLDER / "qwen3")(mx.nd.array(TOKENS)).asnumpy()
    np.testing.assert_allclose(logits.astype("float32").asnumpy(), expected.reshape(-1, 20), atol=0.15)


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (
            lambda net: PagedDecoder(mx.gluon.nn.Dense(3), 4),
            "net is Dense, expected a language model, .*, or a hybrid block with page_heads",
        ),
        (lambda net: PagedDecoder(net, 0), "pages is 0 and page_size 16, expected 1 or more"),
        (lambda net: PagedDecoder(net, 4, dtype="int32"), "dtype is int32, expected one of float32"),
    ],
)
def test_invalid_decoders(create, message):
    with pytest.raises((TypeError, ValueError), match=message):
        create(from_pretrained(FOLDER / "llama"))


def test_invalid_batches():
    decoder = PagedDecoder(from_pretrained(FOLDER / "llama"), 12, SIZE)
    good = batch([(0, 0), (0, 1)])
    bad = {
        "slots": [[3], [3, 48], [-1, 3]], "sequences": [[0, 3]], "rows": [[2]], "positions": [[0, 12]],
        "tables": [[[12]]],
    }  # fmt: skip
    for name, values in bad.items():
        for value in values:
            with pytest.raises((ValueError, IndexError), match=name):
                decoder.step(good._replace(**{name: np.array(value, np.int32)}))


def test_interleaved_rotations_are_refused():
    net = text.LlamaLM(vocab_size=20, units=8, num_layers=1, num_heads=2, hidden_units=8)
    net.llama.layers[0].attention.rotary = mx.gluon.nn.RotaryPositions(4, interleaved=True)
    net.initialize()
    with pytest.raises(ValueError, match="no interleaved rotary positions"):
        PagedDecoder(net, 4).step(
            StepBatch(*[np.zeros(1, np.int32)] * 4, np.zeros((1, 1), np.int32), np.zeros(1, np.int32))
        )
