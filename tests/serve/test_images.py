"""JPEG and PNG images as request bodies, over HTTP."""

import contextlib
import json
import sys

import numpy as np
import pytest

import flowmx as mx
from flowmx import cli
from flowmx.comm.metrics import Metrics
from flowmx.data.codecs import encode
from flowmx.gluon.data.vision import transforms
from flowmx.serve import Input, InvalidInput, Predictor, command
from flowmx.serve.images import ImageReader
from flowmx.serve.replies import Refusal
from tests.serve.test_http import JSON, Client, carried  # noqa: F401 (a fixture)

JPEG, PNG = "image/jpeg", "image/png"
IMAGE = np.random.default_rng(0).integers(0, 256, (12, 20, 3), np.uint8)
GREY = IMAGE[:, :, :1]
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


def identity(shape, image=None, **options):
    net = mx.gluon.nn.HybridLambda(lambda F, x: x * 1)
    return Predictor(net, shape, max_batch=2, metrics=Metrics(), image={} if image is None else image, **options)


def tensor(image):
    return np.moveaxis(image.astype(np.float32) / 255, -1, 0)


async def sample(ask, body, kind=PNG):
    status, _, answer = await ask("POST", "/predict", body, Content_Type=kind)
    assert status == 200, answer
    return np.array(json.loads(answer)["outputs"])


async def refusal(ask, body, kind=PNG):
    status, _, answer = await ask("POST", "/predict", body, Content_Type=kind)
    return status, json.loads(answer)["error"]


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((3, 12, 20), "float32", tensor(IMAGE)),
        ((12, 20, 3), "float32", IMAGE / 255),
        ((3, 12, 20), "uint8", np.moveaxis(IMAGE, -1, 0)),
        ((12, 20, 3), "uint8", IMAGE),
    ],
)
async def test_an_image_becomes_a_sample_in_the_layout_of_the_input(carried, shape, dtype, expected):  # noqa: F811
    async with carried(identity(shape, dtype=dtype)) as ask:
        np.testing.assert_allclose(await sample(ask, encode(IMAGE, ".png")), expected, rtol=1e-6)
        smooth = np.full((12, 20, 3), 100, np.uint8)
        actual = await sample(ask, encode(smooth, ".jpg"), f"{JPEG}; q=1")
        np.testing.assert_allclose(actual, np.full(shape, 100 if dtype == "uint8" else 100 / 255), atol=1.01)


@pytest.mark.parametrize("body", [GREY, IMAGE])
async def test_a_model_with_one_channel_gets_grey_images(body):
    async with Client(identity((1, 12, 20))) as ask:
        actual = await sample(ask, encode(body, ".png"))
        grey = GREY if body is GREY else mx.image.imdecode(encode(IMAGE, ".png"), flag=0).asnumpy()
        np.testing.assert_allclose(actual, tensor(grey), rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, [transforms.Resize((6, 4)), transforms.ToTensor()]),
        (
            {"resize": 8, "mean": MEAN, "std": STD},
            [
                transforms.Resize(8, True),
                transforms.CenterCrop((6, 4)),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ],
        ),
    ],
)
async def test_options_are_those_of_the_transforms(options, steps):
    transform = transforms.Compose(steps)
    expected = transform(mx.nd.array(IMAGE, dtype="uint8"))
    expected = expected.asnumpy() if isinstance(expected, mx.nd.NDArray) else expected
    for image in (options, transform):
        async with Client(identity((3, 4, 6), image)) as ask:
            np.testing.assert_allclose(await sample(ask, encode(IMAGE, ".png")), expected, rtol=1e-5, atol=1e-6)


async def test_damaged_images_are_refused(carried):  # noqa: F811
    async with carried(identity((3, 12, 20))) as ask:
        png, jpeg = encode(IMAGE, ".png"), encode(IMAGE, ".jpg")
        for body, kind, message in [
            (b"", PNG, "begins with nothing, which is no image/png file"),
            (jpeg, PNG, "begins with ffd8ffe0"),
            (b"GIF89a", JPEG, "which is no image/jpeg file"),
            (png[:20], PNG, "the PNG file is damaged"),
            (png[:-200], PNG, "cannot be decoded"),
            (jpeg[:20], JPEG, "the JPEG file is damaged"),
            (jpeg[: len(jpeg) // 2], JPEG, "damaged"),
        ]:
            status, error = await refusal(ask, body, kind)
            assert (status, message in error) == (400, True), (status, error)


@pytest.mark.parametrize(("kind", "suffix"), [(JPEG, ".jpg"), (PNG, ".png")])
@pytest.mark.parametrize("count", [150, pytest.param(20_000, marks=pytest.mark.soak)])
def test_any_damage_is_a_refusal(kind, suffix, count):
    reader, rng, whole = ImageReader([Input("data", (3, 12, 20))], {}), np.random.default_rng(1), encode(IMAGE, suffix)
    for _ in range(count):
        body = bytearray(whole[: rng.integers(3, len(whole) + 1)] if rng.random() < 0.3 else whole)
        for at in rng.integers(0, len(body), rng.integers(1, 5)):
            body[at] = rng.integers(256)
        with contextlib.suppress(InvalidInput, Refusal):
            assert reader(bytes(body), kind).shape == (3, 12, 20)


async def test_large_images_are_refused_before_they_are_decoded(carried):  # noqa: F811
    png = bytearray(encode(IMAGE, ".png"))
    png[16:24] = (60_000).to_bytes(4, "big") * 2
    async with carried(identity((3, 12, 20))) as ask:
        expected = 413, "the image has 60000 x 60000 pixels, expected at most 33554432 pixels"
        assert await refusal(ask, bytes(png)) == expected
    async with carried(identity((3, 12, 20), {"max_pixels": 239}), max_body=2000) as ask:
        assert await refusal(ask, encode(IMAGE, ".jpg"), JPEG) == (
            413, "the image has 12 x 20 pixels, expected at most 239 pixels",
        )  # fmt: skip
        assert (await refusal(ask, bytes(2001)))[0] == 413


async def test_other_bodies_are_read_as_before_and_images_need_the_option():
    async with Client(identity((3, 1, 1), decode=lambda body, kind: body["pixels"])) as ask:
        body = json.dumps({"pixels": [[[1]], [[2]], [[3]]]}).encode()
        assert (await sample(ask, body, JSON)).reshape(-1).tolist() == [1, 2, 3]
        assert (await sample(ask, encode(IMAGE, ".png"))).shape == (3, 1, 1)
    plain = Predictor(mx.gluon.nn.HybridLambda(lambda F, x: x * 1), (3, 1, 1), metrics=Metrics())
    async with Client(plain) as ask:
        status, error = await refusal(ask, encode(IMAGE, ".png"))
        assert (status, "start the service with --image" in error) == (415, True)


async def test_the_refusal_of_another_type_lists_the_types_of_images(carried):  # noqa: F811
    async with carried(identity((3, 1, 1))) as ask:
        status, error = await refusal(ask, b"GIF89a", "image/gif")
        assert status == 415
        assert "expected one of application/json, " in error
        assert error.endswith(", image/jpeg, image/png")


def test_a_service_for_images_without_pillow_does_not_start(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    message = "images are decoded with Pillow, which is not installed: pip install pillow simplejpeg"
    with pytest.raises(ImportError, match=message):
        identity((3, 1, 1))
    net = mx.gluon.nn.GlobalAvgPool2D()
    net.hybridize()
    net(mx.nd.zeros((1, 3, 2, 2)))
    net.export(tmp_path / "model")
    assert cli.main(["serve", str(tmp_path), "--shape", "3,2,2", "--image"]) == 1
    assert message in capsys.readouterr().err


async def test_a_transform_that_fails_is_500_and_one_that_refuses_is_400():
    def fail(image):
        raise KeyError

    def refuse(image):
        raise ValueError("expected a portrait")

    async with Client(identity((3, 1, 1), fail)) as ask:
        assert await refusal(ask, encode(IMAGE, ".png")) == (500, "the image hook of model failed: KeyError")
    async with Client(identity((3, 1, 1), refuse)) as ask:
        assert await refusal(ask, encode(IMAGE, ".png")) == (400, "expected a portrait")


@pytest.mark.parametrize(
    ("shape", "image", "error", "message"),
    [
        ((5,), {}, ValueError, r"input data is float32 \(5,\), and images need \(channels, height, width\)"),
        ({"a": (3, 1, 1), "b": (1,)}, {}, ValueError, "the inputs a, b, and image= needs exactly one"),
        ((3, 1, 1), {"size": 3}, ValueError, "image has the options size, expected some of resize, mean"),
        ((3, 1, 1), {"resize": "big"}, ValueError, "resize is 'big', expected the length"),
        ((3, 1, 1), {"max_pixels": 0}, ValueError, "max_pixels is 0"),
        ((3, 1, 1), 224, TypeError, "image is a int, expected a transform"),
    ],
)
def test_wrong_options_are_refused(shape, image, error, message):
    with pytest.raises(error, match=message):
        identity(shape, image)
    with pytest.raises(ValueError, match="mean and std need a floating point input"):
        identity((3, 1, 1), {"mean": 0.5}, dtype="uint8")


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ([], None),
        (["--image"], {}),
        (["--image-resize", "256", "--image-std", "0.2,0.3,0.4"], {"resize": 256, "std": STD}),
        (["--image-mean", "0.5"], {"mean": (0.5,)}),
    ],
)
def test_options_of_the_command_line(arguments, options):
    assert command._image(command._parser().parse_args(["model", *arguments])) == options
