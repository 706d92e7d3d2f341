"""The data and the network that the examples share: scikit-learn's handwritten digits, and LeNet."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import flowmx as mx

Images = NDArray[np.float32]
Labels = NDArray[np.float32]


def load(seed: int = 7, test_part: float = 0.2) -> tuple[Images, Labels, Images, Labels]:
    """Load the 1,797 digits as 1x28x28 images (8x8 originals, scaled by three, with a border), split at random.

    Returns:
        training images and labels, test images and labels; images of shape (N, 1, 28, 28) in [0, 1].
    """
    bunch = load_digits()
    small = bunch.images.astype(np.float32) / 16
    images = np.zeros((len(small), 1, 28, 28), np.float32)
    images[:, 0, 2:26, 2:26] = small.repeat(3, axis=1).repeat(3, axis=2)
    labels = bunch.target.astype(np.float32)
    order = np.random.default_rng(seed).permutation(len(images))
    held_out = int(len(images) * test_part)
    test, train = order[:held_out], order[held_out:]
    return images[train], labels[train], images[test], labels[test]


def shifted(images: Images, labels: Labels, copies: int, seed: int = 7) -> tuple[Images, Labels]:
    """Return the images and ``copies`` of each, shifted at random by up to two pixels, as more training data."""
    random = np.random.default_rng(seed)
    sets = [images]
    for _ in range(copies):
        moves = random.integers(-2, 3, (len(images), 2))
        sets.append(np.stack([np.roll(image, tuple(move), (1, 2)) for image, move in zip(images, moves, strict=True)]))
    return np.concatenate(sets), np.tile(labels, len(sets))


def lenet(classes: int = 10, pool_type: Literal["max", "avg"] = "max") -> mx.sym.Symbol:
    """Build LeNet (LeCun et al., 1998, by default with max pooling) for 28x28 images, with a softmax loss."""
    data = mx.sym.Variable("data")
    conv1 = mx.sym.Convolution(data, kernel=(5, 5), num_filter=20, name="conv1")
    pool1 = mx.sym.Pooling(mx.sym.Activation(conv1, act_type="tanh"), pool_type=pool_type, kernel=(2, 2), stride=(2, 2))
    conv2 = mx.sym.Convolution(pool1, kernel=(5, 5), num_filter=50, name="conv2")
    pool2 = mx.sym.Pooling(mx.sym.Activation(conv2, act_type="tanh"), pool_type=pool_type, kernel=(2, 2), stride=(2, 2))
    fc1 = mx.sym.FullyConnected(mx.sym.Flatten(pool2), num_hidden=500, name="fc1")
    fc2 = mx.sym.FullyConnected(mx.sym.Activation(fc1, act_type="tanh"), num_hidden=classes, name="fc2")
    return mx.sym.SoftmaxOutput(fc2, name="softmax")
