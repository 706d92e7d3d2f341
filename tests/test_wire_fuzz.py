"""Every endpoint under damaged conversations (tests/fuzz): no crash, no leak, nothing written without the right to.

The fuzzer itself is tried on endpoints with a fault each, which it must find.
"""

import pytest

from tests.fuzz.run import fuzz
from tests.fuzz.target import FAULTS

MINUTES = 10
SEARCHES = {
    "leak": (r"the process grew by \d+ MiB", 40),
    "death": (r"the process has ended with status 3", 40),
    "hang": ("no answer to echo, which never waits", 40),
    "exception": (r"status 500: .*KeyError", 40),
    "open door": (r"was done though its signature is", 10),
    "replay": (r"was done though its signature is replayed", 40),
    "outsiders": (r"was done for '.*', which is no node of the job|has changed what the servers holds", 40),
    "early write": (r"a stranger has changed what the app holds", 10),
}


async def test_endpoints_take_damaged_conversations():
    report = await fuzz(blocks=10)
    assert report.requests > 1000
    assert min(report.statuses[status] for status in (200, 400, 401, 409)) > 20


@pytest.mark.soak
@pytest.mark.timeout(60 * MINUTES + 300)
async def test_endpoints_take_damaged_conversations_for_long():
    report = await fuzz(seconds=60 * MINUTES)
    assert report.requests > 50_000


def test_every_fault_is_searched():
    assert SEARCHES.keys() | {""} == FAULTS.keys()


@pytest.mark.parametrize("fault", SEARCHES)
async def test_the_fuzzer_finds(fault):
    text, blocks = SEARCHES[fault]
    with pytest.raises(AssertionError, match=text) as caught:
        await fuzz(blocks=blocks, seed=1, fault=fault)
    assert "seed 1" in str(caught.value)
    if fault in ("exception", "hang", "death", "open door"):
        assert str(caught.value).count("Action(") == 1  # the one request that it takes
