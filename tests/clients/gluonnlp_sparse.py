"""gluonnlp 0.10 on sparse arrays: the language model with sampled softmax, word embeddings, GloVe.

The models of the last two are in the scripts next to the package, which are read at the tag v0.10.0 from the git
directory that ``GLUONNLP_GIT`` names.
"""

import io
import os
import subprocess
import sys
import tarfile
import tempfile

import mxnet as mx
import numpy as np
from filling import flat, values

COUNT = 40
"""The words of a vocabulary."""


def script(name):
    """A module of ``scripts/word_embeddings``, unchanged."""
    if "GLUONNLP_GIT" not in os.environ:
        raise RuntimeError("GLUONNLP_GIT names no git directory of GluonNLP, whose scripts these are")
    if not hasattr(script, "folder"):
        git = ["git", f"--git-dir={os.environ['GLUONNLP_GIT']}"]
        packed = subprocess.run([*git, "archive", "v0.10.0", "scripts/word_embeddings"], stdout=-1, check=True).stdout
        script.folder = tempfile.TemporaryDirectory()
        with tarfile.open(fileobj=io.BytesIO(packed)) as scripts:
            scripts.extractall(script.folder.name)
        sys.path.insert(0, f"{script.folder.name}/scripts/word_embeddings")
    return __import__(name)


def words(name, shape, dtype="float32"):
    """Numbers of words; the low ones come often."""
    return mx.nd.array(np.floor(np.abs(values(name, shape)) ** 2 * COUNT).clip(0, COUNT - 1), dtype=dtype)


@mx.init.register
class Known(mx.init.Initializer):
    """Weights that follow from the shape; where a shape waits for the data, too."""

    def _init_weight(self, name, array):
        array[:] = mx.nd.array(values(str(array.shape), array.shape, 0.3))


def filled(net):
    """A net with known weights."""
    net.initialize(Known())
    return net


def parameters(net):
    """All weights, whole, and their gradients."""
    every = mx.nd.arange(COUNT, dtype="int64")
    results = {}
    for place, param in enumerate(net.collect_params().values()):
        is_sparse = param._stype != "default"
        results[f"weight.{place}"] = (param.row_sparse_data(every) if is_sparse else param.data()).asnumpy()
        if param.grad_req != "null":
            results[f"gradient.{place}"] = param.grad().asnumpy()
    return results


def language_model(**how):
    """Steps of ``large_word_language_model.py``, and the evaluation with the weights that were trained."""

    def run():
        import gluonnlp as nlp
        from gluonnlp.model.train.language_model import ParallelBigRNN

        length, batch, sampled = 5, 4, 12
        sizes = COUNT, 8, 10, 2, 8
        net = filled(nlp.model.language_model.train.BigRNN(*sizes, sampled, **how))
        net.hybridize(static_alloc=True, static_shape=True)
        loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        trainer = mx.gluon.Trainer(net.collect_params(), "adagrad", {"learning_rate": 0.2, "wd": 0, "eps": 1})
        parallel = ParallelBigRNN(net, loss, batch)
        hidden = net.begin_state(batch_size=batch, func=mx.nd.zeros)
        embedding = next(iter(net.embedding.collect_params().values()))
        encoder = net.encoder.collect_params().values()
        results = {}
        for step in range(3):
            x, y = words(f"x{step}", (length, batch)), words(f"y{step}", (length, batch))
            samples = (
                words(f"sampled{step}", (sampled,)),
                mx.nd.array(0.1 + np.abs(values("expected", (sampled,)))),
                mx.nd.array(0.1 + np.abs(values("true", (length, batch)))),
            )
            hidden = [each.detach() for each in hidden]
            hidden, ls = parallel.forward_backward((x, y, x != 0, samples, hidden))
            gradient = embedding.grad()
            gradient[:] *= batch
            results[f"norm.{step}"] = np.array(
                float(mx.gluon.utils.clip_global_norm([each.grad() for each in encoder], 1.0))
            )
            trainer.step(1)
            results[f"loss.{step}"] = ls.asnumpy()
        results.update(parameters(net) | flat(hidden, "hidden"))
        with tempfile.TemporaryDirectory() as folder:
            net.save_parameters(f"{folder}/net.params")
            whole = nlp.model.language_model.BigRNN(*sizes)
            whole.load_parameters(f"{folder}/net.params")
        out = whole(words("x9", (length, batch)), whole.begin_state(batch_size=batch, func=mx.nd.zeros))
        return results | flat(out, "evaluated")

    return run


def sampled_layers():
    """Layers of sampled softmax and of noise-contrastive estimation, with dense and with sparse weights."""
    import gluonnlp as nlp

    results = {}
    x = mx.nd.array(values("x", (6, 8)))
    label = words("label", (6,))
    samples = words("samples", (10,)), mx.nd.array(np.full(10, 0.3)), mx.nd.array(np.full(6, 0.2))
    for name in ("ISDense", "NCEDense", "SparseISDense", "SparseNCEDense"):
        for keep in (True, False):
            layer = filled(getattr(nlp.model, name)(COUNT, 10, 8, remove_accidental_hits=keep))
            trainer = mx.gluon.Trainer(layer.collect_params(), "adam", {"learning_rate": 0.01})
            x.attach_grad()
            with mx.autograd.record():
                scores, target = layer(x, samples, label)
                total = (scores.clip(-10, 10) ** 2).sum()
            total.backward()
            trainer.step(6)
            results.update(flat([scores.clip(-99, 99), target, x.grad], f"{name}.{keep}"))
            results.update({f"{name}.{keep}.{part}": array for part, array in parameters(layer).items()})
            results[f"{name}.{keep}.stypes"] = np.array(
                [each.grad().stype == "row_sparse" for each in layer.collect_params().values()], "float32"
            )
    return results


def fixed(sampler):
    """The class of a sampler whose negative samples follow from the words, since draws differ."""

    class Fixed(type(sampler)):
        def hybrid_forward(self, F, x, prob=None, alias=None, **_):
            return (x * 7 + 3) % COUNT

    return Fixed


def embeddings(model, subwords, optimizer):
    """Steps of ``train_sg_cbow.py``: skip-grams or bags of words, of words or of their parts."""

    def run():
        import gluonnlp as nlp

        index = {f"word{number}": number for number in range(COUNT)}
        parts = None
        if subwords:
            parts = nlp.vocab.create_subword_function("NGramHashes", num_subwords=COUNT // 2, ngrams=(3, 4))
        counts = mx.nd.arange(COUNT, 0, -1)
        net = getattr(script("model"), model)(index, 6, 9, counts, subword_function=parts, num_negatives=3)
        net.initialize()
        for place, param in enumerate(net.collect_params().values()):
            if param.grad_req != "null" and param.shape[-1] == 6:
                param.set_data(mx.nd.array(values(str(place), param.shape, 0.3)))
        net.negatives_sampler.__class__ = fixed(net.negatives_sampler)
        net.hybridize(static_alloc=True, static_shape=True)
        trainer = mx.gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.1})
        width = COUNT + COUNT // 2 if subwords else COUNT
        results = {}
        for step in range(3):
            one, other = words(f"one{step}", (9,), "int64"), words(f"other{step}", (9,), "int64")
            columns = [[int(each), *([COUNT + int(each) % 20, COUNT + int(each) % 7] if subwords else [])]
                       for each in (one if model == "SG" else other).asnumpy()]  # fmt: skip
            columns = [sorted(set(each)) for each in columns]
            bag = mx.nd.sparse.csr_matrix(
                (
                    np.ones(sum(map(len, columns)), "float32"),
                    np.concatenate(columns),
                    np.cumsum([0, *map(len, columns)]),
                ),
                shape=(9, width),
            )
            with mx.autograd.record():
                loss = net(bag, other, one) if model == "SG" else net(one, bag)
            loss.backward()
            trainer.step(batch_size=1)
            results[f"loss.{step}"] = loss.asnumpy()
        for place, param in enumerate(net.collect_params().values()):
            if param.grad_req != "null":
                results[f"weight.{place}"] = param.data().asnumpy()
                results[f"gradient.{place}"] = param.grad().asnumpy()
        return results | flat(net[["word3", "word7"]], "vectors")

    return run


def glove():
    """Steps of ``train_glove.py``, and its vectors."""
    index = {f"word{number}": number for number in range(COUNT)}
    net = filled(script("train_glove").GloVe(index, output_dim=6, x_max=10, alpha=0.75))
    net.hybridize(static_alloc=True)
    trainer = mx.gluon.Trainer(net.collect_params(), "groupadagrad", {"learning_rate": 0.1, "eps": 1})
    results = {}
    for step in range(3):
        with mx.autograd.record():
            counts = mx.nd.array(1 + np.abs(values(f"counts{step}", (15,), 30)))
            loss = net(words(f"row{step}", (15,), "int32"), words(f"column{step}", (15,), "int32"), counts)
            loss.backward()
        trainer.step(batch_size=1)
        results[f"loss.{step}"] = loss.asnumpy()
    return results | parameters(net) | flat(net[["word3", "word7"]], "vectors")


def samplers():
    """A comparison of how often negative samples are drawn with how often they should be."""
    import gluonnlp as nlp

    mx.random.seed(5)
    weights = mx.nd.arange(1, COUNT + 1)
    sampler = nlp.data.UnigramCandidateSampler(weights)
    sampler.initialize()
    drawn = sampler(mx.nd.zeros((40_000,))).asnumpy().astype(int)
    expected = weights.asnumpy() / weights.sum().asscalar() * len(drawn)
    near = np.abs(np.bincount(drawn, minlength=COUNT) - expected) < 5 * expected**0.5
    return {"near": near.astype("float32")}


CASES = {
    "BigRNN with sparse weights": language_model(), "BigRNN of sparse gradients": language_model(sparse_weight=False),
    "BigRNN with dense gradients": language_model(sparse_weight=False, sparse_grad=False),
    "sampled layers": sampled_layers, "skip-grams of words": embeddings("SG", False, "groupadagrad"),
    "skip-grams of subwords": embeddings("SG", True, "adagrad"), "bags of words": embeddings("CBOW", False, "sgd"),
    "bags of subwords": embeddings("CBOW", True, "groupadagrad"), "GloVe": glove, "samplers": samplers,
}  # fmt: skip
