"""The sequence fields of the Open Inference Protocol."""

import asyncio
import json

import pytest

from tests.serve.sessions.test_session import Sums, opened, summing  # noqa: F401 (a fixture)
from tests.serve.test_http import Client, Gateway, doubling

pytestmark = pytest.mark.usefixtures("opened")


async def infer(client, data, **parameters):
    """Return the status, and the outputs or the error."""
    tensor = {"name": "data", "datatype": "FP32", "shape": [len(data) // 2, 2], "data": data}
    body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    status, _, reply = await client("POST", "/v2/models/model/infer", body, content_type="application/json")
    content = json.loads(reply)
    return status, content["outputs"][0]["data"] if status == 200 else content["error"]


@pytest.mark.parametrize("kind", [Client, Gateway])
async def test_requests_of_a_sequence_share_states(kind):
    async with kind(summing()) as client:
        assert "sequence" in json.loads((await client("GET", "/v2"))[2])["extensions"]
        assert await infer(client, [1, 0], sequence_id=7, sequence_start=True) == (200, [1, 0, 1])
        assert await infer(client, [5, 5], sequence_id="text", sequence_start=True) == (200, [5, 5, 1])
        assert await infer(client, [1, 0], sequence_id=7) == (200, [2, 0, 2])
        assert await infer(client, [1, 0]) == (200, [1, 0, 1])  # no sequence
        assert await infer(client, [1, 0], sequence_id=0) == (200, [1, 0, 1])
        assert await infer(client, [1, 0], sequence_id=7, sequence_end=True) == (200, [3, 0, 3])
        assert await infer(client, [1, 1], sequence_id="text", sequence_start=True) == (200, [1, 1, 1])  # again
        predictor = client.service.models.default()
        assert predictor.describe()["sessions"]["open"] == 1
        one = await infer(client, [2, 0], sequence_id=8, sequence_start=True, sequence_end=True)
        assert one == (200, [2, 0, 1])
        assert predictor.describe()["sessions"]["open"] == 1


@pytest.mark.parametrize(
    ("data", "parameters", "message"),
    [
        ([1, 0], {"sequence_id": 9}, "sequence 9 is not open: it has not started, has ended"),
        ([1, 0], {"sequence_id": 1.5, "sequence_start": True}, "sequence_id is 1.5, expected an integer or a string"),
        ([1, 0], {"sequence_id": True}, "sequence_id is True, expected an integer"),
        ([1, 0], {"sequence_id": "a" * 200}, "sequence_id has 200 characters"),
        ([1, 0], {"sequence_id": 3, "sequence_start": 1}, "sequence_start and sequence_end are true or false"),
        ([1, 0], {"sequence_start": True}, "need a sequence_id"),
        ([1, 0, 1, 0], {"sequence_id": 3, "sequence_start": True}, 'session "sequence 3": the input has 2 samples'),
    ],
)
async def test_wrong_fields_are_refused(data, parameters, message):
    async with Client(summing()) as client:
        status, error = await infer(client, data, **parameters)
        assert status == 400
        assert message in error.replace("'", '"')
        assert client.service.models.default().describe()["sessions"]["open"] == 0


async def test_a_model_without_states_has_no_sequences():
    async with Client(doubling()) as client:
        status, error = await infer(client, [1, 0], sequence_id=4, sequence_start=True)
        assert status == 400
        assert "model has no states, expected no sequence_id" in error


async def test_an_idle_sequence_ends_without_a_request():
    predictor = summing(sessions={"idle": 0.05})
    async with Client(predictor) as client:
        await infer(client, [1, 0], sequence_id=4, sequence_start=True)
        async with asyncio.timeout(30):
            while predictor.describe()["sessions"]["open"]:
                await asyncio.sleep(0.001)
        status, error = await infer(client, [1, 0], sequence_id=4)
        assert status == 400
        assert "sequence 4 is not open" in error


async def test_too_many_sequences_are_refused_with_a_time_to_retry():
    async with Client(summing(sessions={"sessions": 1})) as client:
        assert (await infer(client, [1, 0], sequence_id=1, sequence_start=True))[0] == 200
        status, error = await infer(client, [1, 0], sequence_id=2, sequence_start=True)
        assert status == 503
        assert "1 sessions are open, at most 1 may be" in error
