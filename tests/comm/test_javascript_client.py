"""The JavaScript client of examples/, and the documentation's example of signing in JavaScript."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from flowmx.comm.frames import Message
from flowmx.comm.security import Security
from flowmx.comm.server import Service

NODE = shutil.which("node")
ROOT = Path(__file__).parent.parent.parent
WORKER = ROOT / "examples" / "wire_worker.mjs"
VECTORS = ROOT / "tests" / "fixtures" / "wire_vectors.json"
SECRET = "a secret for two languages"

pytestmark = pytest.mark.skipif(NODE is None, reason="Node is not here")


async def double(caller, message):
    header = {"seen": dict(message.header), "node": caller.node, "big": 2**53 - 1, "less": -(2**40), "none": None}
    return Message(header, [tensor._replace(data=(tensor.array() * 2).data) for tensor in message.tensors])


async def javascript(*arguments, secret=None):
    """Run a script; return its output, its errors and its status."""
    environment = {**os.environ, "FLOWMX_SECRET_FILE": str(secret or "")}
    process = await asyncio.create_subprocess_exec(
        NODE, *map(str, arguments), env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    return output.decode(), errors.decode(), process.returncode


@pytest.mark.parametrize("security", [None, Security(SECRET)])
async def test_javascript_calls_an_operation(security, tmp_path):
    service = Service("two languages", security=security)
    service.operation("echo", double)
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    try:
        output, errors, status = await javascript(WORKER, await service.start(), secret=security and secret)
    finally:
        await service.stop()
    assert (status, errors) == (0, "")
    answer = json.loads(output)
    assert answer["header"]["seen"] == {
        "id": "1", "node": "javascript-0", "number": -70000, "share": 0.5, "list": [None, True, "ü"],
    }  # fmt: skip
    assert answer["header"]["node"] == "javascript-0"
    assert (answer["header"]["big"], answer["header"]["less"]) == (2**53 - 1, -(2**40))
    assert answer["tensors"] == [
        {"dtype": "float32", "shape": [3, 1], "values": [2, -5, 6]},
        {"dtype": "int64", "shape": [2], "values": [14, -(2**41)]},
    ]


@pytest.mark.parametrize("text", [None, "another secret altogether"])
async def test_javascript_is_refused_without_the_secret(text, tmp_path):
    service = Service("two languages", security=Security(SECRET))
    called = []

    async def note(caller, message):
        called.append(caller)
        return message

    service.operation("echo", note)
    secret = tmp_path / "secret"
    secret.write_text(text or "")
    try:
        output, errors, status = await javascript(WORKER, await service.start(), secret=secret if text else None)
    finally:
        await service.stop()
    assert (status, output, called) == (1, "", [])
    assert errors.startswith("unauthorized: ")


async def test_javascript_signs_as_the_documentation_says(tmp_path):
    script = tmp_path / "vectors.mjs"
    script.write_text(f"""
        import {{ readFileSync }} from "node:fs";
        import {{ decode, digestOf, sign }} from {json.dumps(WORKER.as_uri())};
        const vectors = JSON.parse(readFileSync({json.dumps(str(VECTORS))}, "utf8"));
        const {{ header, tensors, head }} = decode(Buffer.from(vectors.frame, "hex"));
        const digest = digestOf(head, tensors);
        const lines = ["request", "POST", "/v1/push", header.node, vectors.time, vectors.nonce, digest];
        const signature = sign(vectors.secret, ...lines);
        console.log(JSON.stringify({{ values: [...tensors[0].array()], digest, signature }}));
    """)
    output, errors, status = await javascript(script)
    assert (status, errors) == (0, "")
    vectors = json.loads(VECTORS.read_text(encoding="utf-8"))
    assert json.loads(output) == {
        "values": np.array([1, -2.5]).tolist(), "digest": vectors["digest"], "signature": vectors["signature"],
    }  # fmt: skip
