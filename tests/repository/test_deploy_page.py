"""docs/deploy.md: its files are valid, and what they start answers the probes and drains."""

import asyncio
import json
import re
import shlex
import signal
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml  # type: ignore[import-untyped]
from aiohttp import ClientSession

import flowmx as mx

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


def block(language):
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return text


DEPLOYMENT, SERVICE = yaml.safe_load_all(block("yaml"))
(CONTAINER,) = DEPLOYMENT["spec"]["template"]["spec"]["containers"]
UNIT = dict(re.findall(r"^(\w+)=(.*)$", block("ini"), re.MULTILINE))
DOCKERFILE = dict(re.findall(r"^(FROM|COPY|CMD) (.*)$", block("dockerfile"), re.MULTILINE))


@pytest.mark.parametrize("version", ["1.29", "1.33"])
def test_the_manifests_are_valid_for_kubernetes(version):
    for document in (DEPLOYMENT, SERVICE):
        kubernetes_validate.validate(document, version, strict=True)
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == labels == SERVICE["spec"]["selector"]
    assert SERVICE["spec"]["ports"][0]["targetPort"] == CONTAINER["ports"][0]["name"]


def test_the_three_ways_start_the_same_service():
    command = ["serve", "--repository", "/models", "--host", "0.0.0.0"]
    assert json.loads(DOCKERFILE["CMD"]) == command == CONTAINER["args"]
    assert DOCKERFILE["COPY"] == "models /models" and DOCKERFILE["FROM"] == "flowmx"
    _, *rest = shlex.split(UNIT["ExecStart"])
    assert rest[:4] == ["-m", "flowmx", "serve", "--repository"]
    image = (ROOT / "packaging" / "docker" / "Dockerfile").read_text(encoding="utf-8")
    assert 'ENTRYPOINT ["flowmx"]' in image and "USER flowmx" in image


async def becomes_ok(session, url):
    """Probe until the answer is 200, as Kubernetes does."""
    while True:
        async with session.get(url) as response:
            if response.status == 200:
                return
            assert response.status == 503, url


async def test_the_container_answers_its_probes_and_drains(tmp_path):
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(3))
    net.initialize()
    net.hybridize()
    net(mx.nd.ones((1, 5)))
    (tmp_path / "digits").mkdir()
    net.export(tmp_path / "digits" / "model")
    (tmp_path / "digits" / "model.toml").write_text("shape = [5]\n")
    changed = {"/models": str(tmp_path), "0.0.0.0": "127.0.0.1"}
    command = ["-m", "flowmx", *(changed.get(item, item) for item in CONTAINER["args"]), "--port", "0"]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.PIPE)
    try:
        address = re.search(r"http://\S+", (await process.stderr.readline()).decode())
        paths = {CONTAINER[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
        assert paths == {"/healthz", "/readyz"}
        async with ClientSession() as session:
            for path in sorted(paths):
                await becomes_ok(session, address[0] + path)
            async with session.post(f"{address[0]}/models/digits/predict", json=[[0.0] * 5]) as response:
                assert (await response.json()) == {"outputs": [[0.0, 0.0, 0.0]]}
        process.send_signal(getattr(signal, UNIT["KillSignal"]))
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
