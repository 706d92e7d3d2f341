"""Jobs in a simulated world: seeds that break no law, replays, and judges that find wrong histories."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.world.ledger import Ledger, Violation
from tests.world.loop import Loop, WorldError
from tests.world.network import Network
from tests.world.processes import CURRENT, Process
from tests.world.scenario import Fault, Scenario, draw
from tests.world.shrink import shrink

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worlds are replayed on Linux")


def lines(*arguments):
    """Return what ``python -m tests.world`` prints, by seed; it must find no broken law."""
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "tests.world", *arguments]
    result = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    return dict(line.split(": ", 1) for line in result.stdout.splitlines())


REGRESSIONS = [
    # A worker that was suspended for longer than the timeout is advised to restart, and gives up none of its pushes.
    Scenario(41, workers=1, servers=1, steps=8, faults=(Fault(2.2, "pause", "worker 0", seconds=16.0),)),
    # A worker is not refused by a server that was cut off before it knew that the job runs.
    Scenario(315, workers=1, steps=8, delay=0.05, faults=(Fault(0.43, "cut", "server 0", "scheduler", 12.0),)),
]


def test_a_sample_of_seeds_breaks_no_law_and_a_seed_is_replayed_bit_for_bit(new_python):
    sample = lines("0:6", *map(repr, REGRESSIONS))
    assert len(sample) == 6 + len(REGRESSIONS)
    assert lines("5") == {"5": sample["5"]}


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 20_000, 1000))
def test_many_seeds_break_no_law(new_python, first):
    assert len(lines(f"{first}:{first + 1000}")) == 1000


# -- the judges -------------------------------------------------------------------------------------------


def ledger_of(*pushes, mode="sync"):
    """Return a ledger of two writers with three steps each, who have sent pushes."""
    ledger = Ledger(mode, 3)
    for writer, step in pushes:
        ledger.push(writer, step)
    return ledger


def values(*elements, count=1.0):
    array = np.zeros(6, np.float32)
    array[list(elements)] = count
    return [array]


def test_a_right_history_is_accepted():
    ledger = ledger_of((0, 0), (1, 0))
    ledger.read(0, 0, values(0, 3), ledger.mark())
    ledger.read(1, 0, values(0, 3), ledger.mark())
    ledger.check(values(0, 3), ledger.mark())


@pytest.mark.parametrize(
    ("value", "law"),
    [
        (values(3), "lost answered pushes: step 0 of writer 0"),
        (values(0, 3, count=2.0), "counts pushes twice: step 0 of writer 0, step 0 of writer 1"),
        (values(0, 1), "nobody pushed: step 1 of writer 0"),
        (values(0, 3, count=0.5), "nobody pushed"),
    ],
)
def test_a_wrong_value_is_found(value, law):
    ledger = ledger_of((0, 0), (1, 0))
    with pytest.raises(Violation, match=law):
        ledger.read(0, 0, value, ledger.mark())


def test_two_values_of_one_step_are_found():
    ledger = ledger_of((0, 0), (1, 0))
    ledger.read(0, 0, values(0), ledger.mark())
    with pytest.raises(Violation, match="two values after step 0: step 0 of writer 1"):
        ledger.read(1, 0, values(0, 3), ledger.mark())


def test_a_push_that_was_answered_and_is_lost_later_is_found():
    ledger = ledger_of((0, 0), (1, 0), mode="async")
    ledger.read(0, 0, values(0), ledger.mark())
    with pytest.raises(Violation, match="lost answered pushes: step 0 of writer 0"):
        ledger.read(1, 0, values(3), ledger.mark())


# -- the loop and the network -----------------------------------------------------------------------------


def simulate(*programs, until=None):
    """Run programs as processes of one world with a network; return the loop."""
    loop = Loop(0)
    network = Network(loop, 0)
    processes = [Process(f"p{number}", f"127.0.0.{number + 1}", loop, number) for number in range(len(programs))]

    async def live():
        tasks = [process.start(program(network)) for process, program in zip(processes, programs, strict=True)]
        await (until(network, processes) if until else asyncio.sleep(0))
        await asyncio.wait(tasks, timeout=1000)
        return [task.result() if task.done() else "waits" for task in tasks]

    try:
        return loop.kernel.context.copy().run(loop.run_until_complete, live())
    finally:
        loop.close()


async def send(network, data=b"x" * 100_000):
    """Send bytes to the other process; return what ended the connection."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    class Sender(asyncio.Protocol):
        def connection_lost(self, error):
            ended.set_result(error)

    sock = await network.connect(("127.0.0.2", 80))
    transport, _ = await loop.create_connection(Sender, sock=sock)
    transport.write(data)
    transport.close()
    return await ended


async def receive(network):
    """Accept one connection; return the number of received bytes, and the time."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    chunks = []

    class Receiver(asyncio.Protocol):
        def data_received(self, data):
            chunks.append(data)

        def connection_lost(self, error):
            ended.set_result((sum(map(len, chunks)), error))

    listening = network.listen(("127.0.0.2", 80))
    accepted = loop.create_future()
    loop.add_reader(listening.fileno(), lambda: accepted.done() or accepted.set_result(None))
    await accepted
    await loop.connect_accepted_socket(Receiver, listening.accept()[0])
    return await ended


def test_bytes_arrive_and_the_end_of_a_connection_too():
    assert simulate(late(send), receive) == [None, (100_000, None)]


def late(program, seconds=1.0):
    """Return a program that starts later."""

    async def run(network):
        await asyncio.sleep(seconds)
        return await program(network)

    return run


def test_nobody_listens_so_the_connection_is_refused():
    async def program(network):
        with pytest.raises(ConnectionRefusedError):
            await network.connect(("127.0.0.9", 80))

    assert simulate(program) == [None]


def test_a_cut_delays_bytes_until_it_ends():
    async def cut(network, processes):
        network.cut("127.0.0.1", "127.0.0.2")
        await asyncio.sleep(60)
        assert not processes[1].main.done()
        network.heal("127.0.0.1", "127.0.0.2")

    assert simulate(late(send), receive, until=cut) == [None, (100_000, None)]


def test_a_killed_process_runs_nothing_more_and_its_connections_break():
    ran = []

    async def program(network):
        await send(network, b"x")
        await asyncio.sleep(600)
        ran.append("on")

    async def kill(network, processes):
        await asyncio.sleep(500)
        processes[0].end()

    assert simulate(late(program), receive, until=kill) == ["waits", (1, None)]
    assert not ran


def test_a_paused_process_is_late():
    async def program(network):
        await asyncio.sleep(1)
        return asyncio.get_running_loop().time()

    async def pause(network, processes):
        processes[0].pause(30)

    assert simulate(program, until=pause)[0] >= 30


def test_what_waits_for_ever_is_named():
    async def program(network):
        await asyncio.get_running_loop().create_future()

    loop = Loop(0)
    try:
        with pytest.raises(WorldError, match="nothing can happen any more"):
            loop.kernel.context.copy().run(loop.run_until_complete, program(None))
    finally:
        for task in loop.kernel.tasks:
            task._log_destroy_pending = False
        loop.close()


def test_code_runs_in_its_process():
    async def program(network):
        await asyncio.sleep(1)
        return await asyncio.to_thread(lambda: CURRENT.get().name)

    assert simulate(program, program) == ["p0", "p1"]


def test_faults_that_are_not_needed_are_dropped():
    guilty = Fault(1.0, "kill", "server 0")
    others = tuple(Fault(float(number), "pause", "worker 0", seconds=1.0) for number in range(5))
    scenario = Scenario(0, faults=(*others[:3], guilty, *others[3:]), keys=4)
    shrunk = shrink(scenario, lambda simpler: guilty in simpler.faults and simpler.steps >= 10)
    assert shrunk == replace(scenario, faults=(guilty,), keys=1, steps=10)


def test_a_seed_determines_its_scenario():
    assert draw(3) == draw(3) != draw(4)
