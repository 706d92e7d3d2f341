"""The processes of a job on one page: a row for each, the feed of the selected process, and access rights."""

import asyncio
import contextlib
import json
import os
import sys

import aiohttp
import pytest

import flowmx as mx
from flowmx import cli
from flowmx.observability.dashboard import job as jobs
from flowmx.observability.dashboard import sampler_thread
from flowmx.tools.commands.dashboard import _parse_process

SECRET = "a secret of some letters"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(sampler_thread, "INTERVAL", 0.05)
    monkeypatch.setattr(jobs, "INTERVAL", 0.02)
    monkeypatch.setattr(jobs, "RETRY_AFTER", 0.02)


async def events(session, url, **params):
    async with session.get(url, params=params) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


async def until(rows, condition):
    async with asyncio.timeout(20), contextlib.aclosing(rows):
        async for frame in rows:
            if condition({row["name"]: row for row in frame}):
                return {row["name"]: row for row in frame}
    raise AssertionError("the feed has ended")


async def test_a_row_for_each_process_and_the_feed_of_one():
    with mx.dashboard.start() as one, mx.dashboard.start(secret=SECRET) as other:
        job = {"worker 0": one.url, "worker 1": f"{other.url}?token={SECRET}"}
        with mx.dashboard.start(job=job) as page:
            async with aiohttp.ClientSession() as session:
                rows = events(session, page.url + "members")
                state = await until(rows, lambda rows: all(each["live"] for each in rows.values()))
                assert list(state) == ["worker 0", "worker 1"]
                assert state["worker 1"]["values"]["resident"] > 1e6 and SECRET not in json.dumps(state)
                async with contextlib.aclosing(events(session, page.url + "events", member="worker 1")) as feed:
                    frame = await anext(feed)
                assert frame["whole"] and frame["now"]["pid"] == os.getpid()
                async with session.get(page.url) as answer:
                    assert "<body data-job>" in await answer.text()


async def test_processes_come_and_go_and_one_in_place_of_another_is_followed():
    job = jobs.Job()
    with mx.dashboard.start(job=job) as page:
        async with aiohttp.ClientSession() as session:
            first = mx.dashboard.start()
            job.add("worker 0", first.url)
            await until(
                events(session, page.url + "members"), lambda rows: "worker 0" in rows and rows["worker 0"]["live"]
            )
            first.stop()
            with mx.dashboard.start() as second:
                job.add("worker 0", second.url)
                url = second.url
                state = await until(
                    events(session, page.url + "members"),
                    lambda rows: rows["worker 0"]["url"] == url and rows["worker 0"]["live"],
                )
                assert list(state) == ["worker 0"]


async def test_an_unreachable_process_shows_the_reason(monkeypatch):
    monkeypatch.setattr(jobs, "TIMEOUT", 0.1)
    with mx.dashboard.start() as stopped:
        pass
    with (
        mx.dashboard.start(secret=SECRET) as guarded,
        mx.dashboard.start(job={"gone": stopped.url, "guarded": guarded.url}) as page,
    ):
        async with aiohttp.ClientSession() as session:
            rows = events(session, page.url + "members")
            state = await until(rows, lambda rows: all(each["why"] for each in rows.values()))
            assert "Connect" in state["gone"]["why"] and "401" in state["guarded"]["why"]
            async with session.get(page.url + "events", params={"member": "worker 7"}) as answer:
                assert answer.status == 404
                assert await answer.text() == "there is no process 'worker 7', expected one of gone, guarded"
            async with session.get(page.url + "members", headers={"Host": "evil.example"}) as answer:
                assert answer.status == 403


def test_an_invalid_address_is_refused():
    with pytest.raises(ValueError, match=r"the dashboard of one is at 'nowhere', expected http://host:port/"):
        mx.dashboard.start(job={"one": "nowhere"})
    assert cli.main(["dashboard", "one=nowhere"]) == 1


async def test_a_launched_job_has_a_page_of_its_processes(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import signal, flowmx as mx\n"
        "kv = mx.kv.create('dist_sync')\nkv.init('w', mx.nd.ones((2,)))\nmx.nd.waitall()\nsignal.pause()\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "flowmx", "launch", "--workers", "1", "--servers", "1", "--dashboard", "--",
        sys.executable, str(script), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        line = (await process.stderr.readline()).decode()
        assert line.startswith("flowmx: the dashboard of the job is at http://127.0.0.1:")
        async with aiohttp.ClientSession() as session:
            rows = events(session, line.split()[-1] + "members")
            await until(rows, lambda rows: rows.keys() == {"server 0", "worker 0"})
    finally:
        process.terminate()
        await process.communicate()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_default_name_of_a_process_is_its_address(scheme):
    assert _parse_process(f"{scheme}://node:8080/") == ("node:8080", f"{scheme}://node:8080/")
