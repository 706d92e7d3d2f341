"""gluonnlp 0.10: BERT, language models, encoders, attention cells, the Transformer, beam search, vocabularies, data."""

import mxnet as mx
import numpy as np
from filling import fill, flat, trained, values


def tokens(shape, highest, name="tokens"):
    """Integers below a bound."""
    return mx.nd.array(np.floor((values(name, shape) + 1) / 2 * highest).clip(0, highest - 1))


def initialized(block, *inputs):
    """A block with known weights."""
    block.initialize(mx.init.Zero())
    fill(block, inputs)
    return block


def bert():
    """BERT with its pooler, next-sentence classifier and decoder."""
    from gluonnlp.model.bert import BERTEncoder, BERTModel

    encoder = BERTEncoder(num_layers=2, units=32, hidden_size=64, max_length=20, num_heads=4, dropout=0.0)
    net = BERTModel(encoder=encoder, vocab_size=50, token_type_vocab_size=2, units=32, embed_size=32, use_decoder=False)
    inputs = tokens((2, 10), 50), mx.nd.zeros((2, 10)), mx.nd.array([10, 7])
    return trained(initialized(net, *inputs), inputs)


def bert_decoder():
    """The masked language model's scores."""
    from gluonnlp.model.bert import BERTEncoder, BERTModel

    encoder = BERTEncoder(num_layers=1, units=16, hidden_size=32, max_length=20, num_heads=2, dropout=0.0)
    net = BERTModel(encoder=encoder, vocab_size=50, token_type_vocab_size=2, units=16, embed_size=16)
    inputs = tokens((2, 10), 50), mx.nd.zeros((2, 10)), mx.nd.array([10, 7]), mx.nd.array([[1, 2], [3, 4]])
    return trained(initialized(net, *inputs), inputs)


def bert_for(task):
    """BERT with the head of a task."""

    def run():
        from gluonnlp.model.bert import BERTClassifier, BERTEncoder, BERTModel, RoBERTaModel

        encoder = BERTEncoder(num_layers=1, units=16, hidden_size=32, max_length=20, num_heads=2, dropout=0.0)
        if task == "roberta":
            net = RoBERTaModel(encoder=encoder, vocab_size=50, units=16, embed_size=16, use_decoder=False)
            inputs = tokens((2, 10), 50), mx.nd.array([10, 7])
        else:
            body = BERTModel(
                encoder=encoder,
                vocab_size=50,
                token_type_vocab_size=2,
                units=16,
                embed_size=16,
                use_decoder=False,
                use_classifier=False,
            )
            net = BERTClassifier(body, num_classes=3, dropout=0.0)
            inputs = tokens((2, 10), 50), mx.nd.zeros((2, 10)), mx.nd.array([10, 7])
        return trained(initialized(net, *inputs), inputs)

    return run


AWD = {
    "mode": "lstm", "vocab_size": 40, "embed_size": 12, "hidden_size": 16, "num_layers": 2, "tie_weights": True,
    "dropout": 0, "weight_drop": 0, "drop_h": 0, "drop_i": 0, "drop_e": 0,
}  # fmt: skip


def language_model(kind):
    """A recurrent language model, two steps of it."""

    def run():
        import gluonnlp as nlp

        if kind == "awd":
            net = nlp.model.AWDRNN(**AWD)
        elif kind == "standard":
            net = nlp.model.StandardRNN(
                mode="gru", vocab_size=40, embed_size=12, hidden_size=12, num_layers=2, dropout=0, tie_weights=True
            )
        else:
            net = nlp.model.train.AWDRNN(**AWD)
        net.initialize(mx.init.Zero())
        x = tokens((6, 3), 40)
        state = net.begin_state(batch_size=3, func=mx.nd.zeros)
        net(x, state)
        fill(net, (x, state))
        with mx.autograd.record():
            out = net(x, state)
            second = net(x, out[1])
            loss = (second[0] ** 2).mean()
        loss.backward()
        gradients = [p.grad() for p in net.collect_params().values() if p.grad_req != "null"]
        return flat([list(out[:2]), second[0]]) | flat(gradients, "gradient")

    return run


def encoders():
    """Convolutional, highway and bidirectional encoders."""
    import gluonnlp as nlp

    results = {}
    x = mx.nd.array(values("x", (7, 2, 9)))
    conv = initialized(
        nlp.model.ConvolutionalEncoder(embed_size=9, num_filters=(4, 5), ngram_filter_sizes=(2, 3), output_size=6), x
    )
    results.update(flat(conv(x, mx.nd.ones((7, 2))), "convolutional"))
    highway = initialized(nlp.model.Highway(9, 2), x[0])
    results.update(flat(highway(x[0]), "highway"))
    lm = nlp.model.BiLMEncoder(
        mode="lstmpc",
        num_layers=2,
        input_size=9,
        hidden_size=8,
        dropout=0.0,
        skip_connection=True,
        proj_size=9,
        cell_clip=3,
        proj_clip=3,
    )
    lm.initialize(mx.init.Zero())
    states = lm.begin_state(mx.nd.zeros, batch_size=2)
    lm(x, states)
    fill(lm, (x, states))
    results.update(flat(lm(x, states), "bidirectional"))
    return results


def attention():
    """Attention cells: dot products and multilayer perceptrons, of several heads, masked."""
    import gluonnlp as nlp

    query, key, value = (mx.nd.array(values(n, (2, 5, 8))) for n in "qkv")
    mask = mx.nd.array(np.tril(np.ones((2, 5, 5))))
    results = {}
    for name, cell in {
        "dot": nlp.model.DotProductAttentionCell(scaled=True),
        "mlp": nlp.model.MLPAttentionCell(units=6),
        "heads": nlp.model.MultiHeadAttentionCell(nlp.model.DotProductAttentionCell(scaled=True), 8, 8, 8, num_heads=2),
    }.items():
        initialized(cell, query, key, value, mask)
        results.update(flat(cell(query, key, value, mask), name))
    return results


def transformer():
    """A Transformer that translates, in training, and its beam search."""
    from gluonnlp.model.transformer import TransformerEncoder

    encoder = TransformerEncoder(num_layers=2, num_heads=2, max_length=12, units=16, hidden_size=32, dropout=0.0)
    x = mx.nd.array(values("x", (2, 7, 16)))
    encoder.initialize(mx.init.Zero())
    encoder(x, valid_length=mx.nd.array([7, 4]))
    fill(encoder, (x,))
    results = flat(encoder(x, valid_length=mx.nd.array([7, 4])), "imperative")
    encoder.hybridize()
    results.update(flat(encoder(x, valid_length=mx.nd.array([7, 4])), "hybridized"))
    return results


def beam_search():
    """The best sentences of a decoder, by beam search."""
    import gluonnlp as nlp

    scores = mx.nd.array(values("scores", (8, 8), 3))

    class Decoder:
        def state_info(self, *args, **kwargs):
            return {"shape": (0, 4), "__layout__": "NC"}

        def __call__(self, step, states):
            return mx.nd.take(scores, step), [each + 1 for each in states] if isinstance(states, list) else states + 1

    sampler = nlp.model.BeamSearchSampler(
        beam_size=3, decoder=Decoder(), eos_id=7, scorer=nlp.model.BeamSearchScorer(), max_length=9
    )
    return flat(sampler(mx.nd.array([1, 3]), mx.nd.zeros((2, 4))))


def data():
    """Vocabularies, embeddings, batches by length, padding."""
    import gluonnlp as nlp

    counter = nlp.data.count_tokens(["the", "cat", "sat", "on", "the", "mat", "and", "the", "dog", "sat", "too"])
    vocab = nlp.Vocab(counter, max_size=6)
    lengths = [3, 9, 4, 8, 2, 7]
    sampler = nlp.data.FixedBucketSampler(lengths, batch_size=2, num_buckets=2, shuffle=False)
    batchify = nlp.data.batchify.Tuple(nlp.data.batchify.Pad(pad_val=0), nlp.data.batchify.Stack())
    padded = batchify([(list(range(n)), n) for n in lengths[:3]])
    embedding = nlp.embedding.TokenEmbedding(unknown_token="<unk>", allow_extend=True)
    embedding["cat"] = mx.nd.array([1.0, 2, 3])
    vocab.set_embedding(embedding)
    return flat(
        [vocab[["the", "cat", "cow"]], [len(batch) for batch in sampler], list(padded), vocab.embedding[["cat", "cow"]]]
    )


def losses():
    """Label smoothing, masked softmax, activation regularisation."""
    import gluonnlp as nlp

    scores, labels = mx.nd.array(values("scores", (2, 5, 6))), tokens((2, 5), 6)
    return flat(
        [
            nlp.loss.MaskedSoftmaxCELoss()(scores, labels, mx.nd.array([5, 3])),
            nlp.loss.LabelSmoothing(epsilon=0.1, units=6)(labels),
            nlp.loss.ActivationRegularizationLoss(alpha=2)(scores, scores * 2),
            nlp.loss.TemporalActivationRegularizationLoss(beta=1)(scores),
        ]
    )


def optimizer():
    """Two steps of BERTAdam and of gradients clipped by their global norm."""
    import gluonnlp as nlp

    net = initialized(mx.gluon.nn.Dense(4, in_units=3), mx.nd.ones((2, 3)))
    trainer = mx.gluon.Trainer(net.collect_params(), "bertadam", {"learning_rate": 0.01, "wd": 0.01})
    for _ in range(2):
        with mx.autograd.record():
            loss = (net(mx.nd.array(values("x", (5, 3)))) ** 2).sum()
        loss.backward()
        norm, _ratio, _finite = nlp.utils.grad_global_norm(list(net.collect_params().values()), 1.0)
        nlp.utils.clip_grad_global_norm(list(net.collect_params().values()), 1.0)
        trainer.update(1)
    return flat([[p.data() for p in net.collect_params().values()], norm])


CASES = {
    "BERT": bert, "BERT's decoder": bert_decoder, "BERT classifier": bert_for("classifier"),
    "RoBERTa": bert_for("roberta"),
    "AWD-LSTM": language_model("awd"), "AWD-LSTM in training": language_model("train"),
    "GRU": language_model("standard"),
    "encoders": encoders, "attention": attention, "Transformer": transformer, "beam search": beam_search, "data": data,
    "losses": losses, "BERTAdam": optimizer,
}  # fmt: skip
