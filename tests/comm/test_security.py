"""Authentication: signatures, replays, changed bodies, addresses, certificates; secrets stay secret."""

import asyncio
import hashlib
import hmac
import json
import logging
import shutil
import subprocess
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from flowmx import settings
from flowmx.comm.client import Peer
from flowmx.comm.errors import Busy, PeerGone, Refused, Unauthorized
from flowmx.comm.frames import Message, Tensor, decode, encode
from flowmx.comm.members import Job
from flowmx.comm.node import Node
from flowmx.comm.replay_protection import ReplayWindow
from flowmx.comm.scheduler import Scheduler
from flowmx.comm.security import ANSWER, REQUEST, InsecureAddress, Security, Tls, digest_of, is_loopback
from flowmx.comm.server import Service
from flowmx.comm.transfer import CONTENT_TYPE

SECRET = "a secret of the tests"
VECTORS = json.loads((Path(__file__).parent.parent / "fixtures" / "wire_vectors.json").read_text(encoding="utf-8"))


class Clock:
    """A clock that the test sets."""

    def __init__(self, now=1_000_000.0):
        self.now = now

    def __call__(self):
        return self.now


async def echo(caller, message):
    return Message({"node": caller.node}, message.tensors)


@pytest.fixture
async def serve():
    started = []

    async def start(security=None, **options):
        service = Service("guarded", security=security)
        service.operation("op", echo)
        started.append(service)
        await service.start(**options)
        return service

    yield start
    for service in started:
        await service.stop()


def sha(data):
    return hashlib.sha256(data).digest()


def signed(security, message, node="w", path="/v1/op"):
    """A request's body and headers."""
    parts = encode(message)
    digest = digest_of([sha(parts[0]), *(sha(tensor.data) for tensor in message.tensors)])
    _, value = security.sign_request("POST", path, node, digest)
    return b"".join(parts), {REQUEST: value, "Content-Type": CONTENT_TYPE}


async def post(service, body, headers, path="/v1/op"):
    async with (
        aiohttp.ClientSession() as session,
        session.post(service.address + path, data=body, headers=headers) as answer,
    ):
        return answer.status, decode([await answer.read()]).header, answer.headers


MESSAGE = Message({"id": "1"}, [Tensor.of(np.arange(4.0)), Tensor.of(np.zeros(0)), Tensor.of(np.zeros(100_000))])


async def test_a_signed_request_is_answered_once(serve):
    security = Security(SECRET)
    service = await serve(security)
    body, headers = signed(security, MESSAGE)
    status, header, answer = await post(service, body, headers)
    assert (status, header) == (
        200,
        {"node": "w", "tensors": header.get("tensors")} if "tensors" in header else {"node": "w"},
    )
    assert ANSWER in answer
    status, header, _ = await post(service, body, headers)
    assert (status, header["error"]["kind"]) == (401, "unauthorized")
    assert "was received before" in header["error"]["text"]


def _other_path(body, headers):
    return body, headers, "/v1/local"


def _other_node(body, headers):
    return body, {**headers, REQUEST: headers[REQUEST].replace("node=w", "node=v")}, "/v1/op"


def _other_time(body, headers):
    return body, {**headers, REQUEST: headers[REQUEST].replace("time=1", "time=2")}, "/v1/op"


def _other_digest(body, headers):
    before, _, after = headers[REQUEST].partition("digest=")
    return body, {**headers, REQUEST: f"{before}digest={'0' * 64}{after[64:]}"}, "/v1/op"


def _other_tensor(body, headers):
    return body[:-1] + b"x", headers, "/v1/op"


def _other_header(body, headers):
    return body.replace(b"\xa11", b"\xa12", 1), headers, "/v1/op"


def _no_signature(body, headers):
    return body, {"Content-Type": CONTENT_TYPE}, "/v1/op"


def _garbage(body, headers):
    return body, {**headers, REQUEST: "Bearer \xff"}, "/v1/op"


CHANGES = [_other_path, _other_node, _other_time, _other_digest, _other_tensor, _other_header, _no_signature, _garbage]


@pytest.mark.parametrize("change", CHANGES)
async def test_any_change_in_transit_is_refused(serve, change):
    clock = Clock()
    service = await serve(Security(SECRET, clock=clock))
    body, headers, path = change(*signed(Security(SECRET, clock=clock), MESSAGE))
    status, header, _ = await post(service, body, headers, path)
    assert (status, header["error"]["kind"]) == (401, "unauthorized")


async def test_a_request_without_the_secret_is_refused_before_its_body_is_read(serve):
    service = await serve(Security(SECRET))
    _, writer = reader, writer = await asyncio.open_connection("127.0.0.1", int(service.address.rpartition(":")[2]))
    writer.write(f"POST /v1/op HTTP/1.1\r\nHost: localhost\r\nContent-Type: {CONTENT_TYPE}\r\n".encode())
    writer.write(b"Content-Length: 1000000\r\n\r\n")
    assert b"401" in await reader.readuntil(b"\r\n")
    writer.close()


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("ours", [None, Security("another secret of ours")])
async def test_a_peer_without_the_secret_is_refused(serve, ours, local):
    service = await serve(Security(SECRET))
    async with Peer(service.address, security=ours, local=local) as peer:
        with pytest.raises(Unauthorized, match=r"signed with its secret|does not match this request"):
            await peer.call("op", {})


async def test_a_service_without_the_secret_is_rejected(serve):
    service = await serve(None)
    async with Peer(service.address, security=Security(SECRET), local=False) as peer:
        with pytest.raises(Unauthorized, match="the response is not signed"):
            await peer.call("op", {})


@pytest.mark.parametrize("seconds", [-61, 61])
async def test_a_large_difference_of_clocks_is_reported(serve, seconds):
    clock = Clock()
    service = await serve(Security(SECRET, clock=clock))
    async with Peer(service.address, security=Security(SECRET, clock=Clock(clock.now + seconds)), local=False) as peer:
        with pytest.raises(Unauthorized, match="synchronize the clocks of both machines"):
            await peer.call("op", {})


async def test_the_node_of_the_header_is_the_one_that_signed(serve):
    service = await serve(Security(SECRET))
    async with Peer(service.address, security=Security(SECRET), node="w-1", local=False) as peer:
        assert (await peer.call("op", {})).header == {"node": "w-1"}
        with pytest.raises(Unauthorized, match="the header names node 'w-2'"):
            await peer.call("op", {"node": "w-2"})


async def between(service, change):
    """A proxy that changes answers."""

    async def forward(request):
        body = await request.read()
        headers = {key: request.headers[key] for key in (REQUEST, "Content-Type")}
        url = service.address + "/v1/op"
        async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=headers) as answer:
            status, content, more = change(answer.status, await answer.read(), dict(answer.headers))
        forwarded = {key: more[key] for key in (ANSWER, "Content-Type") if key in more}
        return web.Response(status=status, body=content, headers=forwarded)

    application = web.Application(client_max_size=1 << 30)
    application.router.add_post("/v1/op", forward)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda status, body, headers: (status, body, headers), None),
        (lambda status, body, headers: (status, body[:-1] + b"x", headers), "changed in transit"),
        (lambda status, body, headers: (status, body, {**headers, ANSWER: "none"}), "not signed"),
        (lambda status, body, headers: (201, body, headers), None),
        (
            lambda status, body, headers: (status, body, {**headers, ANSWER: headers[ANSWER][:-4] + "0000"}),
            "does not match the secret",
        ),
    ],
)
async def test_an_answer_changed_in_transit_is_rejected(serve, change, text):
    service = await serve(Security(SECRET))
    runner = await between(service, change)
    try:
        address = f"127.0.0.1:{runner.addresses[0][1]}"
        async with Peer(address, security=Security(SECRET), local=False) as peer:
            changed = change(200, b"", {ANSWER: ""})[0] != 200
            if text is None and not changed:
                assert (await peer.call("op", {}, [np.ones(3)])).tensors[0].shape == (3,)
            else:
                with pytest.raises((Unauthorized, ValueError), match=text):
                    await peer.call("op", {}, [np.ones(3)])
    finally:
        await runner.cleanup()


def test_nonces_are_remembered_for_as_long_as_they_could_be_used_again():
    window = ReplayWindow(skew=10, capacity=3)
    window.admit("a", sent=100, now=100)
    for now in (100, 110):
        with pytest.raises(Unauthorized, match="was received before"):
            window.admit("a", sent=100, now=now)
    with pytest.raises(Unauthorized, match=r"signed \+11.0 s ago"):
        window.admit("a", sent=100, now=111)
    window.admit("b", sent=121, now=111)  # ahead of this clock
    with pytest.raises(Unauthorized, match="was received before"):
        window.admit("b", sent=121, now=131)
    window.admit("c", sent=131, now=131)
    window.admit("a", sent=131, now=131)  # the first one is forgotten
    with pytest.raises(Busy, match="3 requests within 20 s"):
        window.admit("e", sent=131, now=131)
    window.admit("e", sent=152, now=152)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
async def test_other_addresses_need_a_secret_or_certificates(host):
    service = Service("open")
    with pytest.raises(InsecureAddress, match="requires a shared secret or mutual TLS"):
        await service.start(host=host)


async def test_with_a_secret_any_address_may_be_served(serve):
    service = await serve(Security(SECRET), host="0.0.0.0")
    async with Peer(service.address.replace("0.0.0.0", "127.0.0.1"), security=Security(SECRET)) as peer:
        assert (await peer.call("op", {})).header["node"] == ""


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost", 1), ("127.0.0.1", 1), ("127.9.9.9", 1), ("::1", 1), ("[::1]", 1), ("::ffff:127.0.0.1", 1),
     ("0.0.0.0", 0), ("::", 0), ("10.1.2.3", 0), ("localhost.evil.example", 0), ("", 0), ("::ffff:10.0.0.1", 0)],
)  # fmt: skip
def test_loopback_addresses(host, expected):
    assert is_loopback(host) == bool(expected)


def test_secrets_are_read_from_files_and_never_shown(tmp_path, caplog):
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text(f"  {SECRET}\n")
    security = Security.from_file(path)
    assert security.metrics_token() == Security(SECRET).metrics_token()
    assert SECRET not in repr(security)
    path.write_text("short\n")
    with pytest.raises(ValueError, match="secret: the secret has 5 bytes; it must have at least 16") as caught:
        Security.from_file(path)
    assert "short" not in str(caught.value)
    with pytest.raises(OSError, match="missing"):
        Security.from_file(tmp_path / "missing")
    with pytest.raises(ValueError, match="requires a secret, or certificates"):
        Security()


async def test_nothing_of_the_secret_is_logged(serve, caplog):
    caplog.set_level(logging.DEBUG)
    service = await serve(Security(SECRET))
    async with Peer(service.address, security=Security(SECRET)) as peer:
        await peer.call("op", {}, [np.ones(20_000)])
        with pytest.raises(Refused):
            await peer.call("none", {})
    assert SECRET not in caplog.text
    assert Security(SECRET).metrics_token() not in caplog.text


async def test_metrics_need_their_token(serve):
    security = Security(SECRET)
    service = await serve(security)
    tokens = {None: 401, "Bearer wrong": 401, "Bearer \xe9": 401, f"Bearer {security.metrics_token()}": 200}
    async with aiohttp.ClientSession(service.address) as session:
        for token, status in tokens.items():
            async with session.get("/metrics", headers={REQUEST: token} if token else {}) as response:
                assert response.status == status
        async with session.get("/healthz") as response:
            assert response.status == 200


def test_the_worked_example_of_the_documentation():
    vectors = VECTORS
    parts = encode(Message({"id": "7f", "node": "worker-0", "key": "w"}, [Tensor.of(np.array([1, -2.5], np.float32))]))
    whole = b"".join(parts)
    assert whole.hex() == vectors["frame"]
    digest = digest_of([sha(part) for part in parts])
    assert digest == vectors["digest"]
    text = "\n".join(["FMX1", "request", "POST", "/v1/push", "worker-0", vectors["time"], vectors["nonce"], digest])
    signature = hmac.new(vectors["secret"].encode(), text.encode(), hashlib.sha256).hexdigest()
    assert signature == vectors["signature"]
    security = Security(vectors["secret"], clock=lambda: int(vectors["time"]) / 1000)
    proof = security.check_request("POST", "/v1/push", {REQUEST: vectors["authorization"]})
    assert proof == ("worker-0", vectors["nonce"], digest)
    assert security.sign_response(vectors["nonce"], 200, digest) == vectors["answer"]
    page = "".join((Path(__file__).parent.parent.parent / "docs" / "wire.md").read_text(encoding="utf-8").split())
    for name, value in vectors.items():
        assert "".join(value.split()) in page, name


def certificates(folder):
    """An authority, and certificates of two nodes for 127.0.0.1; and that of another authority's node."""

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for authority in ("ca", "other-ca"):
        openssl(
            "req", "-x509", *key, "-keyout", f"{authority}.key", "-out", f"{authority}.pem", "-subj", f"/CN={authority}"
        )
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for node, authority in (("node", "ca"), ("other", "other-ca")):
        openssl("req", *key, "-keyout", f"{node}.key", "-out", f"{node}.csr", "-subj", f"/CN={node}")
        openssl(
            "x509", "-req", "-in", f"{node}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key",
            "-CAcreateserial", "-extfile", "names", "-out", f"{node}.pem",
        )  # fmt: skip


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")
async def test_mutual_tls(serve, tmp_path):
    certificates(tmp_path)
    ours = Tls(tmp_path / "node.pem", tmp_path / "node.key", tmp_path / "ca.pem")
    other_tls = Tls(tmp_path / "other.pem", tmp_path / "other.key", tmp_path / "ca.pem")
    service = await serve(Security(tls=ours), host="0.0.0.0")
    address = service.address.replace("0.0.0.0", "127.0.0.1")
    assert address.startswith("https://")
    for local in (False, True):
        async with Peer(address, security=Security(tls=ours), local=local) as peer:
            answer = await peer.call("op", {}, [np.arange(100_000.0)])
            assert np.array_equal(answer.tensors[0].array(), np.arange(100_000.0))
    for security in (Security(tls=other_tls), None):
        async with Peer(address, security=security, local=False) as peer:
            with pytest.raises(PeerGone):
                await peer.call("op", {})


def test_a_node_is_named_by_plain_letters():
    for node in ("a b", "a\nb", "ä", "x" * 129):
        with pytest.raises(ValueError, match="a node's name has"):
            Peer("127.0.0.1:1", node=node)


def test_what_was_signed_before_a_service_started_may_have_been_here_before():
    window = ReplayWindow(skew=10, capacity=3, start=100)
    with pytest.raises(Busy, match="sign it again"):
        window.admit("a", sent=99, now=101)
    window.admit("a", sent=100.5, now=101)


def test_security_follows_the_settings(tmp_path):
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text(SECRET)
    with settings.override(secret_file=""):
        assert Security.from_settings() is None
        assert Security.from_settings(str(file)).has_secret
    with settings.override(secret_file=str(file)):
        assert Security.from_settings().has_secret


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"secret_file": "none"}, "FLOWMX_SECRET_FILE: .*No such file"),
        ({"secret_file": "short"}, "must have at least 16"),
        ({"tls_cert": "node.pem"}, "not set: FLOWMX_TLS_KEY and FLOWMX_TLS_CA"),
        ({"tls_cert": "none", "tls_key": "none", "tls_ca": "none"}, "FLOWMX_TLS_CERT=.*none, .*No such file"),
        ({"tls_cert": "short", "tls_key": "short", "tls_ca": "short"}, "FLOWMX_TLS_CERT=.*short, "),
    ],
)
def test_wrong_files_are_named(tmp_path, files, text):
    (tmp_path / "short").touch(0o600)
    (tmp_path / "short").write_text("short")
    paths = {name: str(tmp_path / file) for name, file in files.items()}
    with settings.override(**paths), pytest.raises(settings.SettingError, match=text):
        Security.from_settings()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")
async def test_a_job_over_mutual_tls(tmp_path):
    certificates(tmp_path)
    files = {name: str(tmp_path / file) for name, file in TLS_FILES.items()}
    with settings.override(**files):
        scheduler = Scheduler(Job(workers=1), security=Security.from_settings())
        address = await scheduler.start("0.0.0.0")
        with settings.override(scheduler=address.replace("0.0.0.0", "127.0.0.1")):
            async with Node.from_settings("worker") as node:
                assert node.rank == 0
        await scheduler.stop()


TLS_FILES = {"tls_cert": "node.pem", "tls_key": "node.key", "tls_ca": "ca.pem"}
