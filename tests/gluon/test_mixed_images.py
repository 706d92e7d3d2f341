"""RandAugment, compared with Pillow; MixUp and CutMix, compared with NumPy."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon.data import DataLoader
from flowmx.gluon.data.vision import transforms
from flowmx.gluon.data.vision.rand_augment import CHANGES, RandAugment

PIL = pytest.importorskip("PIL.Image")
from PIL import ImageEnhance, ImageOps  # noqa: E402

GENERATOR = np.random.default_rng(4)
IMAGE = (np.add.outer(np.arange(24) * 4, np.arange(18))[..., None] + GENERATOR.integers(0, 90, (24, 18, 3))).astype(
    "u1"
)
PICTURE = PIL.fromarray(IMAGE)


def transform(*matrix):
    """Apply Pillow's affine transform, which maps positions of the output to those of the input."""
    return PICTURE.transform(PICTURE.size, PIL.Transform.AFFINE, matrix, PIL.Resampling.NEAREST)


PILLOW = {
    "Identity": lambda s: PICTURE,
    "Rotate": lambda s: PICTURE.rotate(30 * s, PIL.Resampling.NEAREST),
    "TranslateX": lambda s: transform(1, 0, -int(150 / 331 * 18 * s), 0, 1, 0),
    "TranslateY": lambda s: transform(1, 0, 0, 0, 1, -int(150 / 331 * 24 * s)),
    "ShearX": lambda s: transform(1, -0.3 * s, 0.15 * s, 0, 1, 0),  # about the middle of the first pixel
    "ShearY": lambda s: transform(1, 0, 0, -0.3 * s, 1, 0.15 * s),
    "Brightness": lambda s: ImageEnhance.Brightness(PICTURE).enhance(1 + 0.9 * s),
    "Color": lambda s: ImageEnhance.Color(PICTURE).enhance(1 + 0.9 * s),
    "Contrast": lambda s: ImageEnhance.Contrast(PICTURE).enhance(1 + 0.9 * s),
    "Sharpness": lambda s: ImageEnhance.Sharpness(PICTURE).enhance(1 + 0.9 * s),
    "Posterize": lambda s: ImageOps.posterize(PICTURE, 8 - round(4 * s)),
    "Solarize": lambda s: ImageOps.solarize(PICTURE, 255 * (1 - s)),
    "AutoContrast": lambda s: ImageOps.autocontrast(PICTURE),
    "Equalize": lambda s: ImageOps.equalize(PICTURE),
}


@pytest.mark.parametrize("strength", [-0.9, -0.3, 0.3, 1.0])
@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_pillows(name, strength):
    if name in ("Posterize", "Solarize"):
        strength = abs(strength)
    result = CHANGES[name](IMAGE, strength, 0, 0)
    expected = np.asarray(PILLOW[name](strength))
    assert (result.shape, result.dtype) == (IMAGE.shape, np.uint8)
    if name in ("Rotate", "ShearX", "ShearY"):  # a position in the middle of two pixels may be rounded either way
        assert (result != expected).any(2).mean() < 0.07
    else:
        assert np.abs(result.astype(int) - expected).max() <= 1


def test_rand_augment_follows_the_seed_and_keeps_its_input():
    change, image = RandAugment(), mx.nd.array(IMAGE, dtype="uint8")

    def run():
        mx.random.seed(5)
        return [change(image).asnumpy() for _ in range(8)]

    first, second = run(), run()
    np.testing.assert_array_equal(first, second)
    assert len({output.tobytes() for output in first}) > 4
    np.testing.assert_array_equal(image.asnumpy(), IMAGE)
    mx.random.seed(5)
    np.testing.assert_array_equal(transforms.Compose([change])(image).asnumpy(), first[0])


def test_a_magnitude_of_0_changes_little():
    mx.random.seed(1)
    changes = RandAugment(magnitude=0, num_ops=30).draw()
    result = RandAugment().transform(
        IMAGE, [change for change in changes if change[0] not in ("AutoContrast", "Equalize")]
    )
    np.testing.assert_array_equal(result, IMAGE)


def test_rand_augment_in_a_loader_with_grayscale_images():
    data = mx.gluon.data.ArrayDataset(GENERATOR.integers(0, 255, (6, 8, 8, 1)).astype("u1"))
    chain = transforms.Compose([RandAugment(4), transforms.ToTensor()])
    batches = list(DataLoader(data.transform(lambda image: chain(mx.nd.array(image, dtype="uint8"))), 3))
    assert [batch.shape for batch in batches] == [(3, 1, 8, 8)] * 2


def test_arrays_of_numpys_interface_stay_such():
    with mx.util.np_array(True):
        image, batch = mx.np.array(IMAGE, dtype="uint8"), mx.np.array(BATCH)
        assert isinstance(RandAugment()(image), mx.np.ndarray)
        for mix in (transforms.MixUp(3), transforms.CutMix(3)):
            assert all(isinstance(part, mx.np.ndarray) for part in mix(batch, mx.np.array(LABELS)))


async def test_an_image_that_is_not_computed_is_changed_later():
    image = mx.nd.array(IMAGE, dtype="uint8") * 1
    out = RandAugment()(image)
    assert (await out).shape == IMAGE.shape


BATCH = GENERATOR.random((4, 3, 8, 6)).astype("f4")
LABELS = np.array([0, 2, 1, 2])
ONE_HOT = np.eye(3, dtype="f4")[LABELS]


@pytest.mark.parametrize("labels", [LABELS, ONE_HOT, LABELS[:, None]], ids=["classes", "probabilities", "column"])
@pytest.mark.parametrize("ctx", [mx.cpu(0), mx.cpu(1)], ids=str)
def test_mixup_averages_images_and_labels(labels, ctx):
    mx.random.seed(3)
    mixed, probabilities = transforms.MixUp(3, alpha=0.4)(mx.nd.array(BATCH, ctx), mx.nd.array(labels, ctx))
    share = float(probabilities[0][0].asscalar())  # sample 0 has class 0, the one before it class 2
    assert 0 < share < 1
    assert mixed.context == ctx
    np.testing.assert_allclose(mixed.asnumpy(), share * BATCH + (1 - share) * np.roll(BATCH, 1, 0), rtol=1e-5)
    np.testing.assert_allclose(
        probabilities.asnumpy(), share * ONE_HOT + (1 - share) * np.roll(ONE_HOT, 1, 0), atol=1e-6
    )


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_cutmix_replaces_a_rectangle_and_weighs_labels_by_its_area(layout):
    mx.random.seed(8)
    batch = BATCH if layout == "NCHW" else BATCH.transpose(0, 2, 3, 1)
    cutmix = transforms.CutMix(3, layout=layout)
    areas = []
    for _ in range(12):
        mixed, probabilities = (part.asnumpy() for part in cutmix(mx.nd.array(batch), mx.nd.array(LABELS)))
        mixed = mixed if layout == "NCHW" else mixed.transpose(0, 3, 1, 2)
        replaced = (mixed != BATCH).all((0, 1))
        assert (np.where(replaced, np.roll(BATCH, 1, 0), BATCH) == mixed).all()
        rows, columns = replaced.any(1), replaced.any(0)
        assert (replaced == np.outer(rows, columns)).all(), "it is a rectangle"
        share = 1 - replaced.mean()
        np.testing.assert_allclose(probabilities, share * ONE_HOT + (1 - share) * np.roll(ONE_HOT, 1, 0), atol=1e-6)
        areas.append(replaced.mean())
    assert len(set(areas)) > 4


def test_a_probability_of_0_only_encodes_the_labels():
    mixed, probabilities = transforms.CutMix(3, p=0)(mx.nd.array(BATCH), mx.nd.array(LABELS))
    np.testing.assert_array_equal(mixed.asnumpy(), BATCH)
    np.testing.assert_array_equal(probabilities.asnumpy(), ONE_HOT)


def test_a_network_trains_on_mixed_labels():
    net = mx.gluon.nn.Dense(3)
    net.initialize()
    net.hybridize()
    data, labels = transforms.MixUp(3)(mx.nd.array(BATCH), mx.nd.array(LABELS))
    with mx.autograd.record():
        loss = mx.gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False)(net(data), labels)
    loss.backward()
    assert loss.shape == (4,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda t: t.RandAugment(magnitude=31), r"magnitude is 31, expected 0 to 30 \(num_magnitude_bins=31\)"),
        (lambda t: t.RandAugment()(mx.nd.ones((4, 4, 3))), "an array of float32, expected uint8: apply it before To"),
        (lambda t: t.RandAugment()(mx.nd.ones((2, 4, 4, 3), dtype="uint8")), r"has shape \(2, 4, 4, 3\), expected"),
        (lambda t: t.MixUp(alpha=0), "alpha is 0, expected a positive number"),
        (lambda t: t.MixUp(3, p=2), "p is 2, expected a probability"),
        (lambda t: t.MixUp()(mx.nd.ones((4, 3)), mx.nd.ones((4,))), r"num_classes is needed: MixUp\(10\)"),
        (lambda t: t.MixUp(3)(mx.nd.ones((4, 3)), mx.nd.ones((3,))), r"labels have shape \(3,\) and the images"),
        (lambda t: t.MixUp(3)(mx.nd.ones((4, 3))), r"the labels are NoneType.*mixup\(data, label\)"),
        (lambda t: t.MixUp(3)(mx.nd.ones((4, 3), dtype="uint8"), mx.nd.ones((4,))), "expected floating point"),
        (lambda t: t.CutMix(3)(mx.nd.ones((4, 3)), mx.nd.ones((4,))), r"the images have shape \(4, 3\), expected"),
        (lambda t: t.CutMix(layout="CHW"), "layout is 'CHW', expected 'NCHW' or 'NHWC'"),
    ],
)
def test_refuses_what_it_cannot_change(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make(transforms)
