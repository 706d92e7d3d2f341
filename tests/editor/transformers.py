"""Attention, Transformer layers, and BERT, GPT-2 and ViT, with the weights of Hugging Face's folders."""

import warnings
from pathlib import Path

import flowmx as mx
from flowmx import autograd, gluon
from flowmx.gluon import nn
from flowmx.gluon.model_zoo import text, vision
from flowmx.ndarray import NDArray

FOLDERS = Path(mx.__file__).parent.parent / "tests" / "fixtures" / "huggingface"


def layers(x: NDArray) -> NDArray:
    attention = nn.MultiHeadAttention(8, 2, causal=True, rotary=True)
    layer = nn.TransformerEncoderLayer(8, 2, activation="swiglu", norm="rms", pre_norm=True, use_bias=False)
    decoder = nn.TransformerDecoder(1, 8, 2)
    for block in (attention, layer, decoder):
        block.initialize()
    memory = layer(attention(x), padding=mx.nd.ones((2, 3)))
    token, cache = decoder(x[:, :1], memory, cache=decoder.begin_cache(2, 4))
    token, cache = decoder(token, memory, cache=cache)
    rows, next_cache = attention(x[:, :1], cache=attention.begin_cache(2, 4))
    assert len(cache[0]) == len(next_cache) == 3 and rows.shape == token.shape
    positions, rotary, gate = nn.LearnedPositions(4, 8), nn.RotaryPositions(8), nn.SwiGLU()
    positions.initialize()
    turned = rotary(positions(x))
    assert turned.ndim == 3
    return gate(x)


def masked_words(tokens: NDArray) -> float:
    bert = text.BERT(vocab_size=10, units=8, num_layers=1, num_heads=2)
    bert.initialize(mx.init.Normal(0.02))
    features, pooled = bert(tokens, padding=mx.nd.ones((2, 3)))
    net = text.BERTMaskedLM(vocab_size=10, units=8, num_layers=1, num_heads=2)
    net.initialize(mx.init.Normal(0.02))
    net.hybridize(static_alloc=True)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), "adamw", {"learning_rate": 0.01}, max_grad_norm=1.0)
    with autograd.record():
        loss = loss_of(net(tokens), tokens).mean()
    loss.backward()
    trainer.step(1)
    names = [layer.name for layer in net.bert.encoder.layers]
    first = net.bert.encoder.layers[0]
    weight = net.bert.words.weight.data()
    assert len(names) == 1 and first.name == names[0] and weight.shape == (10, 8)
    return loss.item() + features.mean().item() + pooled.sum().item()


def pretrained(tokens: NDArray) -> None:
    bert = gluon.model_zoo.from_pretrained(FOLDERS / "bert", text.BERT)
    features, pooled = bert(tokens)
    assert features.shape == (2, 3, 8) and pooled.shape == (2, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classifier = gluon.model_zoo.from_pretrained(FOLDERS / "bert", text.BERTClassifier, classes=3)
    logits = classifier(tokens, padding=mx.nd.ones((2, 3)))
    assert logits.argmax(axis=1).shape == (2,)
    net = gluon.model_zoo.from_pretrained(FOLDERS / "gpt2")
    words = net(tokens)
    assert words.shape[:2] == (2, 3) and len(net.collect_params()) > 4
    if isinstance(net, text.GPT2LM):
        scores, cache = net(tokens[:1], cache=net.begin_cache(batch_size=1, max_length=8))
        assert scores.shape[1] == len(cache[0])
    vit = gluon.model_zoo.from_pretrained(FOLDERS / "vit", vision.ViT)
    assert vit(mx.nd.ones((1, 3, 8, 8))) is not None


def generate(prompt: list[int]) -> list[int]:
    net = text.GPT2LM(vocab_size=20, units=8, num_layers=1, num_heads=2, max_length=16)
    net.initialize(mx.init.Normal(0.02))
    cache, token = net.begin_cache(batch_size=1, max_length=8), mx.nd.array([prompt])
    for _ in range(3):
        logits, cache = net(token, cache=cache)
        token = logits[:, -1:].argmax(axis=2)
        prompt.append(int(token.item()))
    llama = text.LlamaLM(vocab_size=20, units=8, num_layers=1, num_heads=2, hidden_units=8, tied=True)
    llama.initialize()
    assert llama(mx.nd.array([prompt])).shape == (1, len(prompt), 20)
    return prompt


tokens = mx.nd.array([[1, 2, 3], [4, 5, 6]])
assert layers(mx.nd.ones((2, 3, 8))).shape == (2, 3, 4)
assert masked_words(tokens) > 0
pretrained(tokens)
assert len(generate([1, 2])) == 5
images = vision.ViTClassifier(10, image_size=8, patch_size=4, units=8, num_layers=1, num_heads=2)
images.initialize(mx.init.Normal(0.02))
assert images(mx.nd.ones((2, 3, 8, 8))).softmax().argmax(axis=1).shape == (2,)
