"""Transforms of images with exchanged axes warn; images of every right form do not. Values are those of MXNet 1.9.1."""

import contextlib
import warnings

import numpy as np
import pytest

from flowmx import nd
from flowmx.errors import ShapeError
from flowmx.gluon.data.vision import transforms
from flowmx.image import layouts
from flowmx.ops.vision import image as operators


@pytest.fixture(autouse=True)
def forget_lines():
    """Warn again at lines that warned before."""
    layouts._warned_lines.clear()
    operators._warned_lines.clear()


def image(*shape, dtype="uint8"):
    return nd.array(np.random.default_rng(0).integers(0, 256, shape), dtype=dtype)


CHANNELS_FIRST = {
    "Rotate": lambda: transforms.Rotate(30), "RandomRotation": lambda: transforms.RandomRotation((20, 40)),
}  # fmt: skip
CHANNELS_LAST = {
    "ToTensor": transforms.ToTensor, "Resize": lambda: transforms.Resize(6),
    "CenterCrop": lambda: transforms.CenterCrop(6), "RandomCrop": lambda: transforms.RandomCrop(6),
    "RandomResizedCrop": lambda: transforms.RandomResizedCrop(6),
    "CropResize": lambda: transforms.CropResize(0, 0, 3, 3), "RandomFlipLeftRight": transforms.RandomFlipLeftRight,
    "RandomFlipTopBottom": transforms.RandomFlipTopBottom,
}  # fmt: skip
OF_BATCHES = ("ToTensor", "Resize", "CropResize")


@pytest.mark.parametrize("name", CHANNELS_FIRST)
@pytest.mark.parametrize("shape", [(12, 10, 3), (12, 10, 1), (2, 12, 10, 3)])
def test_a_rotation_of_channels_last_warns(name, shape):
    with pytest.warns(UserWarning, match=r"looks like \(height, width, channels\).*apply rotation after ToTensor\(\)"):
        CHANNELS_FIRST[name]()(image(*shape, dtype="float32"))


@pytest.mark.parametrize("name", CHANNELS_LAST)
@pytest.mark.parametrize("shape", [(3, 12, 10), (1, 12, 10), (2, 3, 12, 10)])
def test_channels_first_warn_in_transforms_of_images(name, shape):
    if len(shape) == 4 and name not in OF_BATCHES:
        pytest.skip("it takes single images")
    message = r"looks like \(channels, height, width\).*before ToTensor\(\)"
    # Flips accept only 1 or 3 channels.
    with pytest.warns(UserWarning, match=message), contextlib.suppress(ShapeError):
        CHANNELS_LAST[name]()(image(*shape))


def test_a_second_to_tensor_in_a_composition_warns():
    twice = transforms.Compose([transforms.ToTensor(), transforms.ToTensor()])
    with pytest.warns(UserWarning, match=r"ToTensor\(\) has been applied already"):
        twice(image(12, 10, 3))


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_images_of_the_right_form_do_not_warn(dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for shape in ((12, 10, 3), (12, 10, 1), (3, 3, 3), (4, 10, 3)):
            for name, make in CHANNELS_LAST.items():
                if min(shape[:2]) > 6 or name in ("ToTensor", "CropResize"):
                    make()(image(*shape, dtype=dtype))
            tensor = transforms.ToTensor()(image(*shape, dtype=dtype))
            for make in CHANNELS_FIRST.values():
                assert make()(tensor).shape == tensor.shape
        batch = transforms.ToTensor()(image(2, 12, 10, 3, dtype=dtype))
        assert transforms.Rotate(30)(batch).shape == (2, 3, 12, 10)


def test_normalize_truncates_integers_as_mxnet_and_warns():
    x = image(3, 4, 4)
    with pytest.warns(UserWarning, match="input data has dtype uint8, so the result is truncated to integers"):
        actual = transforms.Normalize((0.1, 0.2, 0.3), (1, 2, 3))(x)
    mean, std = (np.array(values, "f4").reshape(3, 1, 1) for values in ((0.1, 0.2, 0.3), (1, 2, 3)))
    assert np.dtype(actual.dtype) == np.uint8
    np.testing.assert_array_equal(actual.asnumpy(), ((x.asnumpy() - mean) / std).astype("i8").astype("u1"))
    with pytest.warns(UserWarning, match="dtype int32"):
        wrapped = transforms.Normalize(0.5, 0.2)(nd.array([[[0, 1, 255]]], dtype="int32"))
    assert wrapped.asnumpy().tolist() == [[[-2, 2, 1272]]]
    with pytest.warns(UserWarning, match="dtype uint8"):
        wrapped = transforms.Normalize(0.5, 0.2)(nd.array([[[0, 1, 255]]], dtype="uint8"))
    assert wrapped.asnumpy().tolist() == [[[254, 2, 248]]]
