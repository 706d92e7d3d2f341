"""A worker in JavaScript takes part in a job of a scheduler, servers and a worker in Python."""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from flowmx import settings
from flowmx.comm.members import Job
from flowmx.comm.scheduler import Scheduler
from flowmx.comm.security import Security
from flowmx.kvstore.server import main
from flowmx.kvstore.shards import Layout

NODE = shutil.which("node")
WORKER = Path(__file__).parent.parent.parent / "examples" / "job_worker.mjs"
SERVERS = 2

pytestmark = pytest.mark.skipif(NODE is None, reason="Node is not here")

PYTHON = """
import flowmx as mx
kv = mx.kv.create("dist_sync")
kv.init("w", mx.nd.zeros({elements}))
out = mx.nd.zeros({elements})
for number in range({rounds}):
    kv.push("w", mx.nd.ones({elements}) * 10 * (number + 1))
    kv.pull("w", out=out)
    print([float(each) for each in out.asnumpy()][:6])
kv.close()
"""


async def run(*command, **environ):
    """Run a process; return its output, its errors and its status."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        env={**os.environ, **environ},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    return output.decode().splitlines(), errors.decode(), process.returncode


@pytest.fixture
async def job(tmp_path):
    """Start a scheduler and servers with a secret; return the environment of their workers."""
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("a secret for a job in two languages")
    scheduler = Scheduler(Job(workers=2, servers=SERVERS), security=Security.from_file(secret))
    address = await scheduler.start()
    with settings.override(scheduler=address, num_servers=SERVERS, secret_file=str(secret)):
        servers = [asyncio.create_task(main.serve("127.0.0.1", 0, SERVERS)) for _ in range(SERVERS)]
        yield {"FLOWMX_SCHEDULER": address, "FLOWMX_SECRET_FILE": str(secret), "FLOWMX_NUM_SERVERS": str(SERVERS)}
        done, _ = await asyncio.wait(servers, timeout=20)
        for server in servers:
            server.cancel()
        await asyncio.gather(*servers, return_exceptions=True)
    await scheduler.stop()
    assert len(done) == SERVERS, "the servers end with the job"


@pytest.mark.parametrize("elements", [6, 1_200_000])
async def test_two_languages_train_together(job, elements):
    program = PYTHON.format(elements=elements, rounds=3)
    javascript = run(NODE, WORKER, 3, elements, **job)
    python = run(sys.executable, "-c", program, **job)
    (theirs, errors, status), (ours, more, other) = await asyncio.wait_for(asyncio.gather(javascript, python), 60)
    assert (status, errors, other) == (0, "", 0), more
    sums = [11 + 10 * number for number in range(3)]
    assert [json.loads(line) for line in theirs] == [
        {"round": number, "elements": elements, "least": total, "most": total} for number, total in enumerate(sums, 1)
    ]
    assert [json.loads(line) for line in ours] == [[total] * 6 for total in sums]


async def test_without_the_secret_it_takes_no_place(job):
    wrong = Path(job["FLOWMX_SECRET_FILE"]).with_name("wrong")
    wrong.write_text("another secret than that of the job")
    for file in (str(wrong), ""):
        output, errors, status = await run(NODE, WORKER, **{**job, "FLOWMX_SECRET_FILE": file})
        assert (output, status) == ([], 1)
        assert errors.startswith("unauthorized: ")
    javascript = run(NODE, WORKER, 2, **job)
    python = run(sys.executable, "-c", PYTHON.format(elements=6, rounds=2), **job)
    (_, errors, status), (_, more, other) = await asyncio.wait_for(asyncio.gather(javascript, python), 60)
    assert (status, errors, other) == (0, "", 0), more  # no place had been taken


async def test_keys_are_laid_out_as_in_python(tmp_path):
    random = np.random.default_rng(1)
    batches = [
        [(f"key{batch}.{number}", random.integers(1, 60, random.integers(1, 4)).tolist()) for number in range(40)]
        for batch in range(3)
    ]
    batches[1] += [(7, [100, 3]), (8, [100, 3]), ("ü", [4000])]
    script = tmp_path / "layout.mjs"
    script.write_text(f"""
        import {{ Layout }} from {json.dumps(WORKER.as_uri())};
        const found = {json.dumps([1, 2, 3, 5])}.map((servers) => {{
          const layout = new Layout(servers, 1000);
          for (const batch of {json.dumps(batches)}) layout.add(batch);
          return [...layout.parts.values()].flat();
        }});
        console.log(JSON.stringify(found));
    """)
    output, errors, status = await run(NODE, script)
    assert (status, errors) == (0, "")
    for servers, placements in zip([1, 2, 3, 5], json.loads(output[0]), strict=True):
        layout = Layout(servers, 1000)
        for batch in batches:
            layout.add({key: tuple(shape) for key, shape in batch})
        expected = [list(shard[:5]) for key in layout for shard in layout[key]]
        assert sorted(placements, key=repr) == sorted(expected, key=repr)
