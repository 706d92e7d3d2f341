"""mx.nd.image and mx.sym.image: gradients, random choices, refusals."""

import numpy as np
import pytest

import flowmx as mx

rng = np.random.default_rng(0)
IMAGE = rng.integers(0, 256, (6, 5, 3)).astype(np.uint8)


def test_to_tensor_and_its_gradient():
    x = mx.nd.array(IMAGE, dtype="float32")
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.image.to_tensor(x)
    head = rng.standard_normal(y.shape).astype(np.float32)
    y.backward(mx.nd.array(head))
    np.testing.assert_allclose(y.asnumpy(), IMAGE.transpose(2, 0, 1) / np.float32(255), rtol=1e-6)
    np.testing.assert_allclose(x.grad.asnumpy(), head.transpose(1, 2, 0) / 255, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
def test_dtypes(dtype):
    x = mx.nd.array(IMAGE, dtype=dtype)
    for result in (
        mx.nd.image.resize(x, size=4),
        mx.nd.image.random_hue(x, min_factor=0.1, max_factor=0.2),
        mx.nd.image.random_color_jitter(x, 0.1, 0.1, 0.1, 0.1),
        mx.nd.image.flip_left_right(x),
    ):
        assert result.dtype == np.dtype(dtype)
        assert np.isfinite(result.asnumpy()).all()
    assert mx.nd.image.to_tensor(x).dtype == np.float32
    if dtype != "int32":
        assert mx.nd.image.normalize(x.transpose((2, 0, 1)), mean=1, std=2).dtype == np.dtype(dtype)


@pytest.mark.parametrize(("name", "axis"), [("left_right", 1), ("top_bottom", 0)])
def test_random_flips(name, axis):
    x = mx.nd.array(IMAGE, dtype="uint8")
    mx.random.seed(0)
    flipped = [(getattr(mx.nd.image, f"random_flip_{name}")(x).asnumpy() == IMAGE).all() for _ in range(64)]
    assert 16 < sum(flipped) < 48
    np.testing.assert_array_equal(getattr(mx.nd.image, f"flip_{name}")(x).asnumpy(), np.flip(IMAGE, axis))


def test_a_seed_reproduces_random_transforms():
    x = mx.nd.array(IMAGE, dtype="uint8")

    def draw():
        mx.random.seed(3)
        return [
            mx.nd.image.random_color_jitter(x, 0.4, 0.4, 0.4, 0.1).asnumpy(),
            mx.nd.image.random_lighting(x, alpha_std=0.1).asnumpy(),
            mx.nd.image.random_contrast(x, min_factor=0.5, max_factor=1.5).asnumpy(),
        ]

    for one, other in zip(draw(), draw(), strict=True):
        np.testing.assert_array_equal(one, other)
        assert (one != IMAGE).any()


def test_as_symbols():
    tensor = mx.sym.image.to_tensor(mx.sym.image.resize(mx.sym.var("x"), size=(4, 3)))
    assert tensor.infer_shape(x=(2, 6, 5, 3))[1] == [(2, 3, 3, 4)]
    assert tensor.infer_type(x="uint8")[1] == [np.float32]
    assert "to_tensor" in dir(mx.sym.image)
    assert "resize" in dir(mx.nd.image)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mx.nd.image.resize(mx.nd.zeros((3, 3)), size=2), r"input data has shape \(3, 3\), expected \(height"),
        (lambda: mx.nd.image.resize(mx.nd.zeros((3, 3, 3))), "parameter size is"),
        (lambda: mx.nd.image.crop(mx.nd.zeros((3, 3, 3)), 1, 1, 3, 1), "too small for _image_crop"),
        (lambda: mx.nd.image.flip_left_right(mx.nd.zeros((3, 3, 2))), "expected 1 or 3 channels"),
        (lambda: mx.nd.image.random_hue(mx.nd.zeros((3, 3, 3)), 2, 1), "parameter max_factor is 1.0"),
        (lambda: mx.nd.image.normalize(mx.nd.zeros((3, 3, 3)), mean=(1, 2)), "mean has 2 values, input data 3"),
        (lambda: mx.nd.image.adjust_lighting(mx.nd.zeros((3, 3, 3)), alpha=(1,)), "expected three numbers"),
    ],
)
def test_invalid_calls_are_refused(call, message):
    with pytest.raises(mx.MXNetError, match=message):
        call()


@pytest.mark.parametrize(("old", "new", "row", "expected"), [(348, 150, 25, 58), (348, 150, 50, 116), (10, 4, 2, 5)])
def test_nearest_rows_match_opencv_where_sizes_divide(old, new, row, expected):
    image = mx.nd.array(np.arange(old).reshape(old, 1, 1), dtype="float32")
    assert mx.image.imresize(image, 1, new, interp=0)[row, 0, 0].asscalar() == expected
