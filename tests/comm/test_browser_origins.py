"""Requests that a browser sends for a page of another site are refused, everywhere."""

import json

import pytest
from aiohttp import ClientSession, WSServerHandshakeError

from flowmx.comm.browser_origins import check_origins, is_cross_site
from flowmx.comm.errors import CrossSite
from flowmx.comm.security import Security
from flowmx.comm.server import Service
from flowmx.comm.stream import PROTOCOL
from tests.serve.test_http import Client, doubling

OWN, OTHER = "http://localhost:8080", "https://evil.example"
HOST = {"host": "localhost:8080"}


@pytest.mark.parametrize(
    ("headers", "crosses"),
    [
        ({}, False),
        ({"origin": OWN}, False),
        ({"origin": OWN.upper()}, False),
        ({"origin": "http://localhost:3000"}, True),
        ({"origin": OTHER}, True),
        ({"origin": "null"}, True),
        ({"origin": "file://localhost:8080"}, True),
        ({"origin": "http://localhost:8080.evil.example"}, True),
        ({"sec-fetch-site": "none"}, False),
        ({"sec-fetch-site": "same-origin", "origin": "https://behind.proxy"}, False),
        ({"sec-fetch-site": "same-site", "origin": OWN}, True),
        ({"sec-fetch-site": "cross-site"}, True),
    ],
)
def test_pages_of_other_sites_are_distinguished(headers, crosses):
    assert is_cross_site({**HOST, **headers}) is crosses
    assert not is_cross_site({**HOST, **headers}, ["*"])


def test_listed_sites_are_allowed():
    allowed = check_origins(["https://App.example"])
    assert not is_cross_site({**HOST, "origin": "https://app.example", "sec-fetch-site": "cross-site"}, allowed)
    assert is_cross_site({**HOST, "origin": "http://app.example"}, allowed)


@pytest.mark.parametrize("origin", ["app.example", "https://", "https://app.example/", ""])
def test_a_malformed_origin_is_refused(origin):
    with pytest.raises(ValueError, match="is not an origin"):
        check_origins([origin])


# -- nodes of a job ------------------------------------------------------------------------------------


@pytest.fixture(params=["no secret", "a secret"])
async def service(request):
    service = Service("server", security=Security("0123456789abcdef") if request.param == "a secret" else None)
    service.operation("end", lambda caller, message: pytest.fail("a page ended the job"))
    await service.start()
    yield service
    await service.stop()


async def test_a_page_cannot_open_a_stream(service):
    async with ClientSession() as session:
        with pytest.raises(WSServerHandshakeError) as caught:
            await session.ws_connect(f"{service.address}/v1/stream", protocols=[PROTOCOL], origin=OTHER)
    assert caught.value.status in (401, 403)


async def test_a_page_cannot_call_an_operation(service):
    headers = {"Content-Type": "application/x-flowmx", "Origin": OTHER}
    async with ClientSession() as session, session.post(f"{service.address}/v1/end", headers=headers) as answer:
        assert answer.status in (401, 403)


async def test_the_refusal_names_the_site():
    service = Service("server")
    await service.start()
    try:
        headers = {"Content-Type": "application/x-flowmx", "Origin": OTHER}
        async with ClientSession() as session, session.post(f"{service.address}/v1/local", headers=headers) as answer:
            assert answer.status == CrossSite.status
            assert OTHER.encode() in await answer.read()
        async with ClientSession() as session, session.get(f"{service.address}/metrics", headers=headers) as answer:
            assert answer.status == CrossSite.status
    finally:
        await service.stop()


# -- a service of models -------------------------------------------------------------------------------

TENSOR = {"inputs": [{"name": "data", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}


@pytest.mark.parametrize(
    ("path", "body"), [("/ml/predict", [[1, 2]]), ("/ml/v2/models/model/infer", TENSOR)], ids=["predict", "infer"]
)
@pytest.mark.parametrize("type", ["application/json", "text/plain"])
async def test_a_page_of_another_site_cannot_request_a_prediction(path, body, type):
    async with Client(doubling()) as client:
        for origin, status in ((OTHER, 403), ("null", 403)):
            headers = {"Content-Type": type, "Origin": origin}
            async with client.session.post(path, data=json.dumps(body), headers=headers) as answer:
                assert answer.status == status
                assert "--allow-origin" in (await answer.json(content_type=None))["error"]


async def test_a_page_of_the_service_and_programs_can():
    async with Client(doubling()) as client:
        own = str(client.session._base_url).rstrip("/")
        for headers in ({}, {"Origin": own}):
            async with client.session.post("/ml/predict", json=[[1, 2]], headers=headers) as answer:
                assert answer.status == 200
                assert "Access-Control-Allow-Origin" not in answer.headers


async def test_pages_of_an_allowed_site_ask_and_read():
    async with Client(doubling(), origins=["https://app.example"]) as client:
        headers = {"Origin": "https://app.example"}
        async with client.session.post("/ml/predict", json=[[1, 2]], headers=headers) as answer:
            assert answer.status == 200
            assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
        preflight = {**headers, "Access-Control-Request-Method": "POST"}
        async with client.session.options("/ml/predict", headers=preflight) as answer:
            assert answer.status == 204
            assert "Content-Type" in answer.headers["Access-Control-Allow-Headers"]
            assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
        async with client.session.options("/ml/predict", headers={**preflight, "Origin": OTHER}) as answer:
            assert answer.status == 403
