"""MXNet's older training interfaces give its results: cells, bucketing, chains, FeedForward, Trainer's modes."""

import json

import pytest

import flowmx as mx
from tests.fixtures import record_buckets as recorded

EXPECTED = json.loads(recorded.PATH.read_text())


def find_differences(actual, wanted, path=""):
    """Return the places where two results differ by more than rounding errors."""
    if isinstance(wanted, dict):
        assert actual.keys() == wanted.keys(), path
        return [each for name in wanted for each in find_differences(actual[name], wanted[name], f"{path} {name}")]
    if isinstance(wanted, list):
        assert len(actual) == len(wanted), (path, actual, wanted)
        return [
            each
            for i, pair in enumerate(zip(actual, wanted, strict=True))
            for each in find_differences(*pair, f"{path} {i}")
        ]
    if isinstance(wanted, float):
        return [] if actual == pytest.approx(wanted, rel=2e-5, abs=2e-6) else [(path, actual, wanted)]
    return [] if actual == wanted else [(path, actual, wanted)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", sorted(recorded.RECORDED))
def test_results_match_mxnet_for_older_interfaces(name):
    assert find_differences(recorded.RECORDED[name](mx), EXPECTED[name]) == []


def test_differences_are_detected():
    assert find_differences({"a": [1.0, 2.0]}, {"a": [1.0, 2.001]}) == [(" a 1", 2.0, 2.001)]


# -- sentences and checkpoints of mx.rnn -----------------------------------------------------------------------


def test_words_are_encoded_as_in_mxnet():
    coded, vocab = mx.rnn.encode_sentences([["a", "b", "a"], ["c"]], start_label=0, invalid_label=1)
    assert (coded, vocab) == ([[0, 2, 0], [3]], {"\n": 1, "a": 0, "b": 2, "c": 3})
    again, reference = mx.rnn.encode_sentences([["b", "x", "y"]], dict(vocab), start_label=9, unknown_token="<unk>")
    assert again == [[2, 9, 9]]
    assert reference["<unk>"] == 9
    with pytest.raises(KeyError, match="has no 'x'"):
        mx.rnn.encode_sentences([["x"]], vocab)


SENTENCES = [list(range(1, 1 + length)) for length in (2, 3, 3, 5, 5, 5, 9)]


def test_sentences_come_in_buckets_with_the_next_word_as_label(caplog):
    mx.random.seed(1)
    batches = mx.rnn.BucketSentenceIter(SENTENCES, 2, buckets=[3, 5], invalid_label=0)
    assert "1 sentences are longer" in caplog.text
    assert (batches.default_bucket_key, batches.provide_data[0].shape) == (5, (2, 5))
    contents = [(batch.bucket_key, batch.data[0].asnumpy(), batch.label[0].asnumpy()) for batch in batches]
    assert sorted(key for key, _, _ in contents) == [3, 5]
    for key, data, label in contents:
        assert data.shape == label.shape == (2, key)
        assert (label[:, :-1] == data[:, 1:]).all()
        assert (label[:, -1] == 0).all()
    turned = mx.rnn.BucketSentenceIter(SENTENCES, 2, buckets=[5], layout="TN")
    assert next(turned).data[0].shape == turned.provide_label[0].shape == (5, 2)
    with pytest.raises(ValueError, match="no length has batch_size = 4"):
        mx.rnn.BucketSentenceIter(SENTENCES, 4)


def test_an_epoch_of_sentences_can_be_resumed_in_its_middle():
    def numbers(batches):
        return [batch.data[0].asnumpy().tolist() for batch in batches]

    first, second = (mx.rnn.BucketSentenceIter(SENTENCES * 4, 2, buckets=[3, 5]) for _ in range(2))
    next(first)
    second.set_state(first.state())
    assert numbers(second) == numbers(first)
    with pytest.raises(ValueError, match="the state belongs to another iterator"):
        mx.rnn.BucketSentenceIter(SENTENCES, 2, buckets=[3, 5]).set_state(first.state())


async def test_a_fused_cell_loads_the_weights_of_single_cells(tmp_path):
    fused = mx.rnn.FusedRNNCell(4, 2, "lstm", bidirectional=True, prefix="f_")
    outputs, _ = fused.unroll(3, mx.sym.Variable("data"), merge_outputs=True)
    args = {"f_parameters": mx.nd.array(recorded.value("f", outputs.infer_shape(data=(2, 3, 5))[0][1]))}
    await mx.rnn.do_rnn_checkpoint(fused, str(tmp_path / "lm"), 2)(1, outputs, args, {})
    symbol, actual, aux = mx.rnn.load_rnn_checkpoint(fused, str(tmp_path / "lm"), 2)
    assert (symbol.list_arguments(), aux) == (["data", "f_parameters"], {})
    assert (await (actual["f_parameters"] == args["f_parameters"]).min()).asscalar() == 1
    single = fused.unfuse()
    apart, _ = single.unroll(3, mx.sym.Variable("data"), merge_outputs=True)
    weights = single.pack_weights(fused.unpack_weights(args))
    assert await _out(apart, weights) == pytest.approx(await _out(outputs, args), abs=1e-6)


async def _out(symbol, values):
    bound = symbol.simple_bind(mx.cpu(), data=(2, 3, 5))
    bound.copy_params_from(values)
    bound.arg_dict["data"][:] = recorded.value("data", (2, 3, 5))
    return (await bound.forward()[0]).asnumpy()


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, "mode is 'lstmp'", lambda: mx.rnn.FusedRNNCell(3, mode="lstmp")),
        (TypeError, "cannot be called step by step", lambda: mx.rnn.ZoneoutCell(mx.rnn.FusedRNNCell(3))),
        (NotImplementedError, "use unroll", lambda: mx.rnn.FusedRNNCell(3)(mx.sym.Variable("a"), [])),
        (ValueError, "there are 1 inputs", lambda: mx.rnn.RNNCell(3).unroll(2, [mx.sym.Variable("a")])),
        (ValueError, "expected odd numbers", lambda: mx.rnn.ConvRNNCell((1, 3, 5, 5), 2, h2h_kernel=(2, 2))),
        (ValueError, "default_bucket_key is missing", lambda: mx.mod.BucketingModule(lambda key: (None, None, None))),
        (TypeError, "'label' is not a keyword", lambda: mx.mod.SequentialModule().add(mx.mod.BaseModule(), label=True)),
        (ValueError, "expected one name each", lambda: mx.mod.PythonLossModule(data_names=("a", "b"))),
        (TypeError, "symbol is 3", lambda: mx.model.FeedForward(3)),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_refuses(error, message, call):
    with pytest.raises(error, match=message):
        call()


def test_a_bucket_with_other_parameters_is_refused():
    def sym_gen(key):
        out = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name=f"fc{key}")
        return mx.sym.SoftmaxOutput(out, name="softmax"), ("data",), ("softmax_label",)

    mod = mx.mod.BucketingModule(sym_gen, 5)
    mod.bind([("data", (2, 5))], [("softmax_label", (2,))])
    mod.init_params()
    assert mod.output_shapes == [("softmax_output", (2, 3))]
    with pytest.raises(ValueError, match="bucket 3 has a parameter 'fc3_weight', which the default bucket 5 lacks"):
        mod.switch_bucket(3, [("data", (2, 3))], [("softmax_label", (2,))])


def test_gradients_are_accumulated_across_buckets():
    def generate(_):
        weight = mx.sym.var("weight", shape=(1,), init=mx.init.One())
        return mx.sym.make_loss(mx.sym.broadcast_mul(mx.sym.var("data"), weight)), ("data",), None

    module = mx.mod.BucketingModule(generate, default_bucket_key=10)
    module.bind([("data", (2,))], grad_req="add")
    module.init_params()
    for key, expected in ((10, 2), (5, 4), (10, 6)):
        described = [mx.io.DataDesc("data", (2,), layout="N")]
        module.forward_backward(mx.io.DataBatch([mx.nd.ones(2)], bucket_key=key, provide_data=described))
        assert module._current._group.execs[0].grad_dict["weight"].asscalar() == expected
