"""A variational autoencoder learns scikit-learn's handwritten digits, and draws new ones.

Run ``python examples/vae_digits.py --plot build/vae_digits.png``. The encoder predicts a distribution over a small
space of codes; a code is drawn from it (the reparameterization trick, inside the compiled network) and the decoder
draws the digit. Training maximizes the ELBO, a lower bound of the pixels' log-probability in nats.

150 epochs take about 16 seconds of processor time. The ELBO of 360 test digits is -23.6 nats; a model with independent
pixels reaches -27.0.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from progress import Progress, figure, options
from sklearn.datasets import load_digits

import flowmx as mx
from flowmx.gluon import HybridBlock, Trainer, data, nn

SIDE = 8


class VAE(HybridBlock):
    """The negative ELBO of each image: the reconstruction loss plus the KL divergence of the code from the prior."""

    def __init__(self, hidden: int, codes: int) -> None:
        super().__init__(prefix="vae_")
        self.codes = codes
        with self.name_scope():
            self.encoder, self.decoder = nn.HybridSequential(), nn.HybridSequential()
            self.encoder.add(nn.Dense(hidden, activation="relu"), nn.Dense(hidden, activation="relu"))
            self.encoder.add(nn.Dense(2 * codes))
            self.decoder.add(nn.Dense(hidden, activation="relu"), nn.Dense(hidden, activation="relu"))
            self.decoder.add(nn.Dense(SIDE * SIDE))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        mean, log_variance = F.split(self.encoder(x), num_outputs=2, axis=1)
        code = mean + F.exp(log_variance / 2) * F.random.normal_like(mean)
        logits = self.decoder(code)
        pixels = F.sum(F.Activation(logits, act_type="softrelu") - x * logits, axis=1)
        beyond = F.sum(F.exp(log_variance) + F.square(mean) - 1 - log_variance, axis=1) / 2
        return pixels + beyond


def load(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Load training and test digits as vectors of numbers from 0 to 1."""
    images = (load_digits().data / 16).astype(np.float32)
    order = np.random.default_rng(seed).permutation(len(images))
    return images[order[360:]], images[order[:360]]


def baseline(train: np.ndarray, test: np.ndarray) -> float:
    """Return the ELBO of a model with independent pixels."""
    mean = train.mean(axis=0).clip(1e-3, 1 - 1e-3)
    return float((test * np.log(mean) + (1 - test) * np.log(1 - mean)).sum(axis=1).mean())


async def elbo(net: VAE, images: np.ndarray, draws: int = 20) -> float:
    """Estimate the mean ELBO of images, from some draws of their codes."""
    costs = net(mx.nd.array(np.tile(images, (draws, 1)))).mean()
    await costs
    return -float(costs.asscalar())


async def draw(net: VAE, test: np.ndarray, curves: dict[str, list[tuple[float, float]]], options: Any) -> None:
    """Plot the ELBO over the epochs, and generated digits."""
    drawn = mx.nd.sigmoid(net.decoder(mx.nd.random.normal(shape=(100, net.codes))))
    await drawn
    page = figure(options.plot, 8, 3.8)
    left, right = page.subplots(1, 2)
    for name, curve in curves.items():
        left.plot([x for x, _ in curve], [y for _, y in curve], label=name)
    left.set(xlabel="epoch", ylabel="ELBO (nats)", title="Variational autoencoder")
    left.legend()
    rows = np.pad(drawn.asnumpy().reshape(10, 10, SIDE, SIDE), ((0, 0), (0, 0), (1, 1), (1, 1)))
    right.imshow(rows.transpose(0, 2, 1, 3).reshape(10 * (SIDE + 2), -1), cmap="gray_r")
    right.set(title="drawn by the decoder")
    right.axis("off")
    page.savefig(options.plot, dpi=120)


async def main(options: argparse.Namespace) -> float:
    """Train, plot, return the ELBO of test digits."""
    mx.random.seed(options.seed)
    np.random.seed(options.seed)
    train, test = load(seed=7)
    net = VAE(options.hidden, options.codes)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    loader = data.DataLoader(data.SimpleDataset(list(train)), options.batch_size, shuffle=True)
    trainer = Trainer(net.collect_params(), "adam", {"learning_rate": 2e-3})
    run = options.checkpoint and mx.checkpoint.Run(options.checkpoint, net, trainer, loader, every=options.every)
    start, batch = await run.resume_async() if run else (0, 0)
    progress = Progress(options.epochs, len(loader))
    curves: dict[str, list[tuple[float, float]]] = {"training": [], "test": []}
    for epoch in range(start, options.epochs):
        progress.begin(epoch, batch)
        async for images in loader:
            with mx.autograd.record():
                costs = net(images)
            costs.backward()
            trainer.step(len(images))
            await progress.batch(costs.mean(), len(images))
            if run:
                await run.batch_end_async()
        curves["training"].append((epoch + 1, -progress.mean))
        curves["test"].append((epoch + 1, await elbo(net, test)))
        batch = 0
        if (epoch + 1) % options.lines == 0 or epoch + 1 == options.epochs:
            await progress.end(f", test ELBO {curves['test'][-1][1]:.3f}")
        if run:
            await run.epoch_end_async()
    print(f"with independent pixels: {baseline(train, test):.3f}")
    test_elbo = await elbo(net, test)
    if options.plot:
        await draw(net, test, curves, options)
    return test_elbo


def parser() -> argparse.ArgumentParser:
    """Build the parser of this example's options."""
    arguments = options(__doc__, epochs=150, batch_size=64)
    arguments.add_argument("--hidden", type=int, default=256)
    arguments.add_argument("--codes", type=int, default=8, help="dimensions of the code")
    arguments.add_argument("--lines", type=int, default=10, help="epochs between lines")
    return arguments


if __name__ == "__main__":
    print(f"test ELBO: {mx.run(main(parser().parse_args())):.3f}")
