"""Milliseconds of training steps of BERT, GPT-2 and ViT: forward, backward and Adam (run by turns.py).

    python transformers_training.py SYSTEM NETWORK [DROPOUT]

Four layers of 256 features and 4 heads, batch 8: texts of 128 tokens, a fifth of BERT's padded, and images of 121
patches. flowmx is hybridized; PyTorch runs Hugging Face's models.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from timing import best_ms, measure  # a module of this folder: the peers cannot import the package

BATCH, LENGTH, WORDS, CLASSES, IMAGE = 8, 128, 5000, 10, 176
RNG = np.random.default_rng(0)


def inputs(network: str) -> tuple[list[Any], Any]:
    """Return the inputs of a network, and its labels."""
    labels = RNG.integers(0, CLASSES, BATCH)
    if network == "vit":
        return [RNG.standard_normal((BATCH, 3, IMAGE, IMAGE)).astype("float32")], labels
    tokens = RNG.integers(0, WORDS, (BATCH, LENGTH))
    if network == "gpt2":
        return [tokens], tokens
    padding = np.ones((BATCH, LENGTH), "int64")
    padding[:, LENGTH * 4 // 5 :] = 0
    return [tokens, padding], labels


def flowmx(mx: Any, network: str, dropout: float) -> dict[str, float]:
    """Measure flowmx."""
    zoo = mx.gluon.model_zoo
    sizes = {"units": 256, "num_layers": 4, "num_heads": 4, "dropout": dropout, "attention_dropout": dropout}
    words = {"vocab_size": WORDS, "max_length": LENGTH}
    arrays, labels = inputs(network)
    if network == "bert":
        net = zoo.text.BERTClassifier(CLASSES, **sizes, **words)
        data = [mx.nd.array(arrays[0], dtype="int32"), None, mx.nd.array(arrays[1], dtype="int32")]
    elif network == "gpt2":
        net = zoo.text.GPT2LM(**sizes, **words, embedding_dropout=dropout)
        data = [mx.nd.array(arrays[0], dtype="int32")]
    else:
        net = zoo.vision.ViTClassifier(CLASSES, image_size=IMAGE, **sizes)
        data = [mx.nd.array(arrays[0])]
    net.initialize(mx.init.Normal(0.02))
    net.hybridize(static_alloc=True, static_shape=True)
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    loss.hybridize()
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-3})
    target = mx.nd.array(labels, dtype="int32")

    def step() -> None:
        with mx.autograd.record():
            logits = net(*data)
            if network == "gpt2":
                value = loss(logits[:, :-1], target[:, 1:]).mean()
            else:
                value = loss(logits, target).mean()
        value.backward()
        trainer.step(1)
        value.asscalar()
        mx.nd.waitall()

    for _ in range(10):  # native runs begin at the eighth
        step()
    return {"step_ms": best_ms(step)}


def pytorch(network: str, dropout: float) -> dict[str, float]:
    """Measure Hugging Face's models."""
    import torch
    import transformers as hf

    arrays, labels = inputs(network)
    sizes = {
        "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024,
        "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout, "num_labels": CLASSES,
    }  # fmt: skip
    data = [torch.from_numpy(array) for array in arrays]
    model: Any
    if network == "bert":
        model = hf.BertForSequenceClassification(
            hf.BertConfig(**sizes, vocab_size=WORDS, max_position_embeddings=LENGTH)
        )
        call = {"input_ids": data[0], "attention_mask": data[1]}
    elif network == "gpt2":
        config = hf.GPT2Config(
            vocab_size=WORDS, n_positions=LENGTH, n_embd=256, n_layer=4, n_head=4, use_cache=False,
            resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        model, call = hf.GPT2LMHeadModel(config), {"input_ids": data[0]}
    else:
        model, call = hf.ViTForImageClassification(hf.ViTConfig(**sizes, image_size=IMAGE)), {"pixel_values": data[0]}
    model.train()
    optimizer, target = torch.optim.Adam(model.parameters(), 1e-3, fused=True), torch.from_numpy(labels)

    def step() -> None:
        optimizer.zero_grad()
        loss = model(**call, labels=target).loss
        loss.backward()
        optimizer.step()
        loss.item()

    return {"step_ms": best_ms(step)}


def main() -> None:
    """Measure one system, and print its figures as JSON."""
    measure(flowmx, pytorch, sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 0.1)


if __name__ == "__main__":
    main()
