"""Every endpoint under damaged conversations (tests/fuzz): no crash, no leak, no unauthorized write.

The fuzzer itself is tested on endpoints with one planted fault each, which it must find.
"""

import re

import pytest

from tests.fuzz.run import fuzz
from tests.fuzz.target import FAULTS

MINUTES = 10
MIB = 1 << 20
SLOW = [pytest.mark.soak, pytest.mark.timeout(300)]
SEARCHES = {
    "exception": "status 500: .*KeyError",
    "open door": "was done though its signature is",
    "replay": "was done though its signature is replayed",
    "outsiders": "which is no node of the job|has changed what the servers holds",
    "early write": "a client without the secret has changed what the app holds",
    "death": "the process has ended with status 3",
    "hang": "no answer to echo, which never waits",
}


async def test_endpoints_take_damaged_conversations():
    report = await fuzz(blocks=8)
    assert report.requests > 500
    assert min(report.statuses[status] for status in (200, 400, 401, 409)) > 20


@pytest.mark.soak
@pytest.mark.timeout(60 * MINUTES + 300)
async def test_endpoints_take_damaged_conversations_for_long():
    report = await fuzz(seconds=60 * MINUTES)
    assert report.requests > 50_000


def test_every_fault_is_searched():
    assert SEARCHES.keys() | {"", "leak"} == FAULTS.keys()


@pytest.mark.parametrize(
    "fault", [*list(SEARCHES)[:5], *(pytest.param(name, marks=SLOW) for name in ("death", "hang"))]
)
async def test_the_fuzzer_finds(fault):
    with pytest.raises(AssertionError, match=SEARCHES[fault]) as caught:
        await fuzz(blocks=40, seed=5, fault=fault, attempts=4)
    text = str(caught.value)
    assert "seed 5" in text
    if fault in ("exception", "open door", "replay"):
        assert 1 <= len(re.findall(r"Action\(", text)) <= 4  # the few requests that cause it, not all that were sent


async def test_the_fuzzer_finds_a_leak():
    with pytest.raises(AssertionError, match=r"the process grew by \d+ MiB"):
        await fuzz(blocks=8, seed=1, fault="leak", growth=10 * MIB)
