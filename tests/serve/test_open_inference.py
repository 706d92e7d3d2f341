"""Open Inference Protocol: its own client against a real socket, wrong requests, and random ones."""

import json

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http.aio as triton
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException

import flowmx as mx
from flowmx.comm.metrics import Metrics
from flowmx.serve import InvalidInput, Predictor
from flowmx.serve.open_inference import HEADER, Inference, datatype
from tests.serve.test_http import Client, carried, doubling  # noqa: F401 (a fixture)
from tests.serve.test_predictor import Gate, gated  # noqa: F401 (a fixture)

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)
DATATYPES = ["UINT8", "INT8", "INT32", "INT64", "FP16", "FP32", "FP64"]


class Triton(Client):
    """The protocol's own client, and a service."""

    async def __aenter__(self):
        await super().__aenter__()
        self.client = triton.InferenceServerClient(f"127.0.0.1:{self.runner.addresses[0][1]}/ml")
        return self.client

    async def __aexit__(self, *error):
        await self.client.close()
        await super().__aexit__(*error)


def tensor(name, array, kind=None, binary=True):
    tensor_input = triton.InferInput(name, list(array.shape), kind or datatype(array.dtype))
    tensor_input.set_data_from_numpy(array, binary_data=binary)
    return tensor_input


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
@pytest.mark.parametrize("in_binary", [True, False])
@pytest.mark.parametrize("out_binary", [True, False])
async def test_the_protocols_client_gets_the_models_outputs(in_binary, out_binary, compression):
    predictor = doubling()
    async with Triton(predictor) as client:
        await predictor.ready()
        actual = await client.infer(
            "model", [tensor("data", ROWS, binary=in_binary)], request_id="7",
            request_compression_algorithm=compression,
            outputs=[triton.InferRequestedOutput("output0", binary_data=out_binary)],
        )  # fmt: skip
        np.testing.assert_array_equal(actual.as_numpy("output0"), ROWS * 2)
        answer = actual.get_response()
        assert (answer["id"], answer["model_name"], answer["model_version"]) == ("7", "model", "0")
        assert ("data" in answer["outputs"][0]) != out_binary


async def test_the_server_and_its_models_have_metadata():
    predictor = Predictor(
        mx.gluon.nn.HybridLambda(lambda F, x: x * 2), (2, None), lengths=(4, 8), max_batch=2, metrics=Metrics(),
        dtype="int32", name="longer",
    )  # fmt: skip
    async with Triton(predictor) as client:
        await predictor.ready()
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("longer")
        assert await client.is_model_ready("longer", "0")
        assert (await client.get_server_metadata())["version"] == mx.__version__
        actual = await client.get_model_metadata("longer")
        assert actual["versions"] == ["0"]
        assert actual["inputs"] == [{"name": "data", "datatype": "INT32", "shape": [-1, 2, -1]}]
        assert actual["outputs"] == [{"name": "output0", "datatype": "INT32", "shape": [-1, 2, -1]}]


@pytest.mark.parametrize("kind", DATATYPES)
async def test_each_datatype_comes_back(kind):
    dtype = {"FP": "float", "IN": "int", "UI": "uint"}[kind[:2]] + "".join(filter(str.isdecimal, kind))
    block = mx.gluon.nn.HybridLambda(lambda F, x: x + x)
    predictor = Predictor(block, (2,), dtype=dtype, max_batch=4, metrics=Metrics())
    async with Triton(predictor) as client:
        await predictor.ready()
        actual = await client.infer("model", [tensor("data", ROWS.astype(dtype))])
        np.testing.assert_array_equal(actual.as_numpy("output0"), ROWS.astype(dtype) * 2)


def test_bfloat16_goes_both_ways():
    array = ROWS.astype(ml_dtypes.bfloat16)
    described = {"name": "x", "shape": [3, 2], "datatype": "BF16", "parameters": {"binary_data_size": 12}}
    head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    exchange = Inference("net", "1", len(head))
    read = exchange.read(head + array.tobytes())["x"]
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, array)
    reply = exchange.write({"y": array})
    assert reply.body[int(reply.headers[HEADER]) :] == array.tobytes()


async def test_several_inputs_and_one_of_two_outputs():
    block = mx.gluon.nn.HybridLambda(lambda F, x, y: (x + y, x - y))
    predictor = Predictor(block, {"x": (2,), "y": (2,)}, max_batch=4, metrics=Metrics())
    async with Triton(predictor) as client:
        await predictor.ready()
        inputs = [tensor("y", ROWS), tensor("x", ROWS * 3, binary=False)]
        actual = await client.infer("model", inputs, outputs=[triton.InferRequestedOutput("output1")])
        np.testing.assert_array_equal(actual.as_numpy("output1"), ROWS * 2)
        assert actual.as_numpy("output0") is None


async def test_the_client_gets_the_reason_of_an_error():
    predictor = doubling()
    async with Triton(predictor) as client:
        await predictor.ready()
        wrong = {
            r"400.*shape \(3, 5\), expected \(2,\)": [tensor("data", np.zeros((3, 5), np.float32))],
            r"400.*inputs are other, expected data": [tensor("other", ROWS)],
        }
        for message, inputs in wrong.items():
            with pytest.raises(InferenceServerException, match=message):
                await client.infer("model", inputs)
        with pytest.raises(InferenceServerException, match=r"404.*no model 'other'"):
            await client.infer("other", [tensor("data", ROWS)])
        with pytest.raises(InferenceServerException, match=r"404.*no version '3' of model, expected one of 0"):
            await client.infer("model", [tensor("data", ROWS)], model_version="3")
        with pytest.raises(InferenceServerException, match=r"400.*no output 'other', expected some of output0"):
            await client.infer("model", [tensor("data", ROWS)], outputs=[triton.InferRequestedOutput("other")])


async def test_a_model_that_is_not_warm_is_not_ready(gated):  # noqa: F811
    Gate.let.clear()
    async with Triton(gated) as client:
        assert await client.is_server_live()
        assert not await client.is_server_ready()
        assert not await client.is_model_ready("model")
        Gate.let.set()
        await gated.ready()
        assert await client.is_server_ready()


GOOD = {"name": "data", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
WRONG = {
    "not valid JSON": b"[1, ",
    "deep JSON": b"[" * 9999,
    "a list, expected an object": b"[]",
    "inputs is None, expected a list": b"{}",
    "expected a list of objects": json.dumps({"inputs": [1]}).encode(),
    "the input data occurs twice": json.dumps({"inputs": [GOOD, GOOD]}).encode(),
    "name of a tensor is 5": json.dumps({"inputs": [GOOD | {"name": 5}]}).encode(),
    "shape of data is 2": json.dumps({"inputs": [GOOD | {"shape": 2}]}).encode(),
    "is 'BYTES', expected one of BOOL": json.dumps({"inputs": [GOOD | {"datatype": "BYTES"}]}).encode(),
    "2 values, expected 4 for": json.dumps({"inputs": [GOOD | {"shape": [2, 2]}]}).encode(),
    "the data are a str": json.dumps({"inputs": [GOOD | {"data": "12"}]}).encode(),
    "expected numbers": json.dumps({"inputs": [GOOD | {"data": ["1", "2"]}]}).encode(),
    "fractions, expected integers": json.dumps({"inputs": [GOOD | {"datatype": "INT8", "data": [1.5, 2]}]}).encode(),
    "1 to 300, expected -128 to 127": json.dumps({"inputs": [GOOD | {"datatype": "INT8", "data": [1, 300]}]}).encode(),
    "0 to 5, expected 0 to 1": json.dumps({"inputs": [GOOD | {"datatype": "BOOL", "data": [0, 5]}]}).encode(),
    "not a tensor of FP32": json.dumps({"inputs": [GOOD | {"data": [[1], 2]}]}).encode(),
    "parameters is a list": json.dumps({"inputs": [GOOD | {"parameters": []}]}).encode(),
    "0 bytes remain": json.dumps({"inputs": [GOOD | {"parameters": {"binary_data_size": 8}}]}).encode(),
    "the id is a int": json.dumps({"inputs": [GOOD], "id": 5}).encode(),
    "classification extension": json.dumps(
        {"inputs": [GOOD], "outputs": [{"name": "y", "parameters": {"classification": 2}}]}
    ).encode(),
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_body_gets_the_reason(message):
    expected = "too large" if message == "deep JSON" else message
    with pytest.raises(InvalidInput) as refused:
        Inference("net", "1").read(WRONG[message])
    assert expected in str(refused.value)


def test_surplus_bytes_are_refused():
    head = json.dumps({"inputs": [GOOD]}).encode()
    with pytest.raises(InvalidInput, match="3 bytes remain after the last tensor"):
        Inference("net", "1", len(head)).read(head + b"abc")
    with pytest.raises(InvalidInput, match=f"{HEADER} is 999, expected at most"):
        Inference("net", "1", 999).read(head)


@pytest.mark.parametrize(
    ("header", "body", "status", "message"),
    [("many", b"{}", 400, "'many', expected a number"), ("9" * 5000, b"{}", 400, "expected a number"),
     ("2000", b"{}", 413, "at most 1000"),
     (None, b" " * 2000, 413, "send large tensors in binary")],
)  # fmt: skip
async def test_a_head_that_is_too_long_is_refused(carried, header, body, status, message):  # noqa: F811
    headers = {} if header is None else {HEADER.replace("-", "_"): header}
    async with carried(doubling(), max_text=1000) as ask:
        answer_status, _, answer = await ask("POST", "/v2/models/model/infer", body, **headers)
        assert answer_status == status
        assert message in json.loads(answer)["error"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(GOOD)), inner, max_size=4),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries({}, optional={key: JSON | st.just(GOOD[key]) for key in GOOD}),
    st.fixed_dictionaries({}, optional={"id": JSON, "outputs": JSON, "parameters": JSON}), st.binary(max_size=8),
    st.none() | st.integers(0, 300),
)  # fmt: skip
def test_a_random_body_is_read_or_refused(entry, rest, tail, header):
    try:
        read = Inference("net", "1", header).read(json.dumps({"inputs": [entry], **rest}).encode() + tail)
    except InvalidInput:
        return
    (array,) = read.values()
    assert list(array.shape) == entry["shape"]
    assert datatype(array.dtype) == entry["datatype"]
