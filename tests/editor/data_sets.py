"""Data sets, their items, samplers, loaders, augmenters, mixed images."""

import asyncio
from collections.abc import Iterator

import numpy as np

import flowmx as mx
from flowmx import gluon
from flowmx.gluon.data.vision import transforms


class Squares(gluon.data.Dataset[tuple[float, float]]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, idx: int) -> tuple[float, float]:
        return float(idx), float(idx**2)


class EveryOther(gluon.data.Sampler):
    def __iter__(self) -> Iterator[int]:
        return iter(range(0, 10, 2))

    def __len__(self) -> int:
        return 5


def items() -> None:
    x, y = Squares()[3]
    assert x + y == 12.0
    pairs = gluon.data.ArrayDataset(mx.nd.ones((6, 2)), np.arange(6))
    row, label = pairs[1]
    assert row.shape == (2,) and int(label) == 1
    single = gluon.data.ArrayDataset(mx.nd.ones((6, 2)))
    assert single[0].shape == (2,)
    doubled = pairs.transform_first(lambda row: row * 2)
    twice, label = doubled[2]
    assert twice.sum().item() == 4.0 and int(label) == 2
    sums = pairs.transform(lambda row, label: row.sum() + float(label))
    assert sums[0].item() == 2.0
    few = Squares().take(3)
    assert [sum(item) for item in few] == [0.0, 2.0, 6.0]
    odd = Squares().filter(lambda item: item[0] % 2 == 1).shard(2, 0)
    a, b = odd[0]
    assert b == a**2
    train, rest = gluon.data.random_split(Squares(), [7, 3], seed=1)
    value, square = train[0]
    assert square == value**2 and len(rest) == 3
    words, others = gluon.data.random_split(["a", "b"], [0.5, 0.5])
    assert words[0].upper() in "AB" and len(others) == 1
    simple = gluon.data.SimpleDataset([1.5, 2.5])
    assert simple[1].is_integer() is False
    three = gluon.data.ArrayDataset([1, 2], ["a", "b"], mx.nd.ones((2, 3)))
    number, letter, array = three[0]
    assert number.bit_length() == 1 and letter.upper() == "A" and array.shape == (3,)


def samplers() -> list[int]:
    sampler = gluon.data.WeightedRandomSampler([0.5] * 10, num_samples=6)
    numbers = list(sampler)
    batches = gluon.data.BatchSampler(EveryOther(), 2, last_batch="keep")
    first = next(iter(batches))
    buckets = gluon.data.BucketSampler([3, 1, 2, 5], batch_size=2, buckets=2)
    assert len(numbers) == 6 and first == [0, 2] and buckets.bounds[0] > 0
    return [len(batch) for batch in buckets]


def loaders() -> None:
    loader = gluon.data.DataLoader(Squares(), batch_size=4, sampler=EveryOther(), last_batch="discard")
    for x, y in loader:
        assert (x * x == y).min().item() == 1
    total = 0.0
    for batch in loader:
        total += batch[0].sum().item()
    state = loader.state()
    loader.set_state(state)
    texts = gluon.data.DataLoader(["a", "b"], batch_size=2, batchify_fn=lambda samples: "".join(samples))
    joined = [batch.upper() for batch in texts]
    padded = gluon.data.batchify.Pad()([np.ones(2), np.ones(3)])
    assert joined == ["AB"] and padded.shape == (2, 3) and total == 12.0


async def asynchronous() -> int:
    count = 0
    async for x, y in gluon.data.DataLoader(Squares(), batch_size=5, num_workers=1, thread_pool=True):
        count += (await x).size + y.size
    await asyncio.sleep(0)
    return count


def images() -> None:
    augment = transforms.Compose(
        [
            transforms.RandomResizedCrop(8),
            transforms.RandomFlipLeftRight(),
            transforms.RandAugment(),
            transforms.ToTensor(),
        ]
    )
    image = augment(mx.nd.zeros((10, 10, 3), dtype="uint8"))
    normal = transforms.Normalize(0.5, 0.25)(image)
    mixed, probabilities = transforms.MixUp(num_classes=3)(mx.nd.stack(normal, normal), mx.nd.array([0, 2]))
    cut, again = transforms.CutMix(num_classes=3)(mixed, probabilities)
    assert cut.shape == (2, 3, 8, 8) and abs(again.sum().item() - 2) < 1e-5
    changed = mx.image.CreateAugmenter((3, 8, 8), rand_mirror=True)
    for augmenter in changed:
        image = augmenter(mx.nd.ones((8, 8, 3)))
    resized = mx.image.imresize(image, 4, 4)
    cropped, place = mx.image.center_crop(resized, (2, 2))
    assert cropped.shape == (2, 2, 3) and place[0] == 1


items()
assert samplers() == [2, 2]
loaders()
assert mx.run(asynchronous()) == 20
images()
