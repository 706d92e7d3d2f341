"""Large bodies are processed in chunks, with the same results as small ones."""

import asyncio
import json
import threading

import ml_dtypes
import msgpack
import numpy as np
import pytest

import flowmx as mx
from flowmx.serve import large_bodies
from flowmx.serve.formats import JSON, MSGPACK, NPY
from flowmx.serve.service import Service

SHAPES = [(), (0,), (3,), (5000,), (3, 0), (70, 70), (2, 3000, 2), (20_000, 1), (1, 9000), (4097,)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool])
def test_the_text_of_arrays_is_that_of_their_lists(shape, dtype):
    array = np.random.default_rng(0).integers(0, 99, shape).astype(dtype)
    value = {"outputs": {"a": array, "b": [1, "x", {"c": array}]}, "n": None}
    lists = {"outputs": {"a": array.tolist(), "b": [1, "x", {"c": array.tolist()}]}, "n": None}
    assert large_bodies.text_of(value, array.size) == large_bodies.text_of(value, 1 << 20) == json.dumps(lists).encode()


@pytest.mark.parametrize("shape", [each for each in SHAPES if np.prod(each)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_numbers_that_json_lacks_become_null(shape, dtype):
    array = np.random.default_rng(0).integers(0, 99, shape).astype(dtype)
    expected = array.astype(np.float64).astype(object)
    for index, value in zip(np.ndindex(shape), (np.nan, np.inf, -np.inf), strict=False):
        array[index], expected[index] = value, None
    text = JSON.write({"out": array})
    assert json.loads(bytes(text), parse_constant=pytest.fail) == {"outputs": expected.tolist()}
    assert large_bodies.text_of([array], 1 << 20) == large_bodies.text_of([array], 0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float64, np.int64, bool])
def test_lists_become_the_array_that_numpy_makes(shape, dtype):
    inputs = np.random.default_rng(0).integers(0, 99, shape).astype(dtype).tolist()
    result, expected = large_bodies.array_of(inputs), np.asarray(inputs)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(result, expected)


def test_mixed_lists_become_the_array_that_numpy_makes():
    for value in ([1] * 5000 + [0.5], [True] * 5000 + [2], [1] * 5000 + ["x"], [[1, 2]] * 5000 + [[0.5, 1]]):
        result, expected = large_bodies.array_of(value), np.asarray(value)
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)
    for value in ([[1, 2]] * 5000 + [[1]], [1] * 5000 + [[1]], [[1] * 5000, [1] * 4999], [[1] * 5000, 3]):
        with pytest.raises(ValueError, match="inhomogeneous"):
            large_bodies.array_of(value)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("size", [3, 100, 70_000, 20_000_000])
def test_msgpack_is_the_same_in_chunks(size, count):
    outputs = {f"out{number}": np.full(size, number, np.uint8) for number in range(count)}
    formed = {name: {"shape": [size], "dtype": "uint8", "data": each.tobytes()} for name, each in outputs.items()}
    whole = {"outputs": formed if count > 1 else formed["out0"]}
    assert bytes(MSGPACK.write(outputs)) == msgpack.packb(whole)


def test_large_npy_bodies_are_read_again():
    array = np.arange(200_000, dtype=np.float32).reshape(400, 500)
    for each in (array, array.T):
        np.testing.assert_array_equal(NPY.read(bytes(NPY.write({"out": each}))), each)


@pytest.mark.parametrize(
    ("work", "most"),
    [
        (lambda: large_bodies.text_of(np.random.default_rng(0).random(200_000), 200_000), 4096),
        (lambda: large_bodies.loads(json.dumps([0.5] * 200_000).encode()), 1),
        (lambda: large_bodies.array_of([0.5] * 200_000), 4096),
    ],
    ids=["text", "loads", "array"],
)
def test_other_threads_can_run_in_between(work, most, monkeypatch):
    """No call into C handles more numbers than a chunk has."""
    sizes = []
    dumps, asarray = json.dumps, np.asarray
    monkeypatch.setattr(
        large_bodies.json, "dumps", lambda value, **options: sizes.append(np.size(value)) or dumps(value, **options)
    )
    monkeypatch.setattr(large_bodies.np, "asarray", lambda value: sizes.append(len(value)) or asarray(value))
    monkeypatch.setattr(large_bodies, "_float", lambda text: sizes.append(1) or float(text))
    sizes.clear()
    work()
    assert len(sizes) >= 200_000 // 4096
    assert max(sizes[-40:]) <= most


class Wide(mx.gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.broadcast_mul(x, F.ones((1, 1000)))


async def test_large_data_is_copied_and_written_on_other_threads(monkeypatch):
    """Joining the chunks of a request and writing the response do not block the event loop."""
    threads = {}

    def noted(module, name):
        original = getattr(module, name)

        def call(*args):
            threads[name] = threading.current_thread()
            return original(*args)

        monkeypatch.setattr(module, name, call)

    noted(large_bodies, "_array_fragments")
    noted(np, "concatenate")
    async with mx.serve.Predictor(Wide(), (1,), max_batch=2, max_queue=20) as predictor:
        service = Service(predictor)
        call = service.begin("POST", "/predict", {"content-type": "application/json"})
        reply = await call.reply(json.dumps([[1.0]] * 10).encode())
    assert np.shape(json.loads(bytes(reply.body))["outputs"]) == (10, 1000)
    assert set(threads) == {"_array_fragments", "concatenate"}
    assert threading.current_thread() not in threads.values()


async def test_large_answers_are_sent_in_chunks():
    sent = []

    received = []

    async def receive():
        if received:
            await asyncio.Event().wait()
        received.append(1)
        return {"type": "http.request", "body": b"[[1.0]]"}

    async def send(event):
        sent.append(event)

    class Large(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.broadcast_mul(x, F.ones((1, 200_000)))

    headers = [(b"content-type", b"application/json"), (b"accept", b"application/x-npy")]
    scope = {"type": "http", "method": "POST", "path": "/predict", "headers": headers}
    async with mx.serve.Predictor(Large(), (1,), max_batch=1) as predictor:
        await mx.serve.asgi(predictor)(scope, receive, send)
    start, *bodies = sent
    assert start["status"] == 200
    whole = b"".join(each["body"] for each in bodies)
    assert dict(start["headers"])[b"content-length"] == str(len(whole)).encode()
    assert NPY.read(whole).shape == (1, 200_000)
    assert max(len(each["body"]) for each in bodies) <= 1 << 18
    assert [each.get("more_body", False) for each in bodies] == [True] * (len(bodies) - 1) + [False]


def test_invalid_json_of_any_size_is_refused():
    for body in (b"[1, 2", b"[" + b"1.5, " * 50_000 + b"x]"):
        with pytest.raises(mx.serve.InvalidInput, match="not valid JSON"):
            JSON.read(body)
