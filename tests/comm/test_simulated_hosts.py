"""Simulated hosts: the model of the wire, the network, and jobs that lose packets and hosts."""

import asyncio
import math
import os
from pathlib import Path

import pytest

from tests.hosts import HostedJob, Link, Network, Wire, unavailable

REASON = unavailable()
needs_namespaces = pytest.mark.skipif(bool(REASON), reason=REASON)


# The model


def send(wire, packets, at=0.0, source=0, target=1, size=1000):
    for number in range(packets):
        wire.send(at, source, target, number.to_bytes(4, "big") + bytes(size - 4))


def arrivals(wire):
    """Return the time, the receiver and the number of each packet."""
    packets = []
    while wire.next is not None:
        now = wire.next
        packets += [(now, target, int.from_bytes(packet[:4], "big")) for target, packet in wire.due(now)]
    return packets


def test_a_packet_needs_its_transmission_time_and_the_latency_of_both_links():
    wire = Wire([Link(rate=8e6, latency=0.01), Link(rate=4e6, latency=0.02), Link()])
    send(wire, 1)
    assert arrivals(wire) == [(pytest.approx(0.001 + 0.01 + 0.002 + 0.02), 1, 0)]


def test_packets_wait_for_each_other_and_the_slower_link_sets_the_pace():
    wire = Wire([Link(rate=8e6), Link(rate=4e6), Link()])
    send(wire, 10)
    assert [when for when, _, _ in arrivals(wire)] == pytest.approx([0.003 + 0.002 * n for n in range(10)])


def test_directions_do_not_share_a_link():
    wire = Wire([Link(rate=8e6)] * 2)
    send(wire, 10)
    send(wire, 10, source=1, target=0)
    packets = arrivals(wire)
    assert packets[-1][0] == packets[-2][0] == pytest.approx(0.011)


def test_all_packets_of_a_host_share_its_link_in_each_direction():
    for pairs in ([(0, 1), (0, 2)], [(1, 0), (2, 0)]):
        wire = Wire([Link(rate=8e6), Link(), Link()])
        for source, target in pairs:
            send(wire, 5, source=source, target=target)
        assert arrivals(wire)[-1][0] == pytest.approx(0.01)


def test_packets_that_would_wait_too_long_are_lost():
    wire = Wire([Link(rate=8e6, queue=0.0045), Link()])
    send(wire, 10)
    assert [which for _, _, which in arrivals(wire)] == [0, 1, 2, 3, 4]


def test_losses_have_the_given_rate_and_are_the_same_in_every_run():
    def lost(seed):
        wire = Wire([Link(loss=0.02), Link()], seed)
        send(wire, 10_000, size=4)
        return set(range(10_000)) - {which for _, _, which in arrivals(wire)}

    assert 150 < len(lost(0)) < 250
    assert lost(0) == lost(0) != lost(1)


def test_nothing_passes_a_cut_until_it_is_healed():
    wire = Wire([Link(latency=1.0)] * 3)
    wire.cut([0], [1])
    for source, target in ((0, 1), (1, 0), (0, 2)):
        send(wire, 1, source=source, target=target)
    assert [where for _, where, _ in arrivals(wire)] == [2]
    wire.heal()
    send(wire, 1)
    assert [where for _, where, _ in arrivals(wire)] == [1]


@pytest.mark.parametrize("wrong", [{"rate": 0}, {"latency": -1}, {"loss": 1.5}, {"queue": -1}, {"rate": math.nan}])
def test_invalid_links_are_refused(wrong):
    with pytest.raises(ValueError, match="invalid link"):
        Link(**wrong)


# The network


def descriptors():
    return {path.name for path in Path("/proc/self/fd").iterdir()}


RECEIVER = """
import socket, sys, time
listener = socket.create_server(("0.0.0.0", 9000))
print("listening", socket.gethostname(), flush=True)
line, _ = listener.accept()
total, start = 0, 0.0
while chunk := line.recv(1 << 16):
    start = start or time.perf_counter()
    total += len(chunk)
print("received", total, time.perf_counter() - start, flush=True)
"""
SENDER = """
import socket, sys, time
start = time.perf_counter()
line = socket.create_connection((sys.argv[1], 9000))
print("connected", time.perf_counter() - start, flush=True)
line.sendall(bytes(int(sys.argv[2])))
"""


async def measure_transfer(network, nbytes):
    """Return the seconds that two hosts need to connect, and to transfer this number of bytes."""
    receiver = await network.hosts[1].python("receiver", "-c", RECEIVER)
    assert await receiver.line("listening") == "listening host-1"
    sender = await network.hosts[0].python("sender", "-c", SENDER, network.hosts[1].address, str(nbytes))
    connected = (await sender.line("connected")).split()[1]
    _, total, seconds = (await receiver.line("received")).split()
    assert int(total) == nbytes
    await receiver.success()
    return float(connected), float(seconds)


@needs_namespaces
async def test_a_shaped_link_has_its_latency_and_its_bandwidth():
    async with Network(2, Link(rate=50e6, latency=0.02)) as network:
        connected, seconds = await measure_transfer(network, 4_000_000)
    assert 0.08 <= connected < 0.16  # a round trip: both links, both ways
    assert 0.6 < seconds < 2.0  # 0.64 s at the link's rate, more on a busy machine


@needs_namespaces
async def test_a_network_leaves_no_processes_and_descriptors():
    before = descriptors()
    processes = []

    async def break_off():
        async with Network(2) as network:
            processes.append(await network.hosts[1].start("sleeper", ["sh", "-c", "echo $$; sleep 1000"]))
            await processes[0].line("")
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        await break_off()
    (process,) = processes
    pid = int(process.lines[0])
    assert process.ended.result() < 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert descriptors() <= before


@needs_namespaces
async def test_hosts_that_are_cut_off_connect_after_the_cut_is_healed():
    async with Network(2) as network:
        network.partition(network.hosts[0])
        receiver = await network.hosts[1].python("receiver", "-c", RECEIVER)
        await receiver.line("listening")
        sender = await network.hosts[0].python("sender", "-c", SENDER, network.hosts[1].address, "10")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sender.line("connected"), 0.5)
        network.heal()
        await sender.line("connected")  # the system tries again after a second
        assert "received 10 " in await receiver.success()


@needs_namespaces
async def test_the_output_of_a_process_that_ends_early_is_shown():
    async with Network(1) as network:
        process = await network.hosts[0].start("shell", ["sh", "-c", "echo something else; exit 3"])
        with pytest.raises(AssertionError, match=r"(?s)shell ended without 'ready'.*exit status 3.*something else"):
            await process.line("ready")


def test_a_network_needs_hosts():
    with pytest.raises(ValueError, match="1 to 250"):
        Network(0)


# Jobs

PUSHING = str(Path(__file__).parent.parent / "hosts" / "pushing.py")
FAST = {"FLOWMX_KVSTORE_HEARTBEAT": "0.2"}


async def start(network, folder, rounds, *, workers, servers=1, **environ):
    """Start a job with a worker on each of the first hosts, and the scheduler and the servers on the next ones."""
    job = HostedJob(folder, workers, servers, {**FAST, "FLOWMX_KVSTORE_BIGARRAY_BOUND": "10000", **environ})
    await job.scheduler(network.hosts[workers])
    for rank in range(servers):
        await job.server(network.hosts[workers + rank], rank)
    for rank in range(workers):
        await job.worker(network.hosts[rank], rank, PUSHING, str(rounds))
    return job


async def check_success(job, workers, rounds):
    for process in job.processes.values():
        await process.success()
    for rank in range(workers):
        assert f"all {rounds} rounds were right" in job.processes[f"worker {rank}"].text


@needs_namespaces
async def test_a_job_over_hosts_with_losses_and_latency_has_the_right_sums(tmp_path):
    async with Network(4, Link(rate=100e6, latency=0.01, loss=0.01)) as network:  # a round trip takes 40 ms
        job = await start(network, tmp_path, 4, workers=2, servers=2)
        await check_success(job, 2, 4)
        assert "on host-" not in "".join(
            process.text for process in job.processes.values()
        )  # no node was reported as lost


@needs_namespaces
async def test_a_host_that_is_cut_off_is_named_by_all_others_in_time(tmp_path):
    seconds = 2.0
    async with Network(3) as network:
        job = await start(network, tmp_path, 1_000_000, workers=2, FLOWMX_KVSTORE_TIMEOUT=str(seconds))
        lost, *survivors = (job.processes[name] for name in ("worker 1", "worker 0", "server 0", "scheduler"))
        await lost.line("round 3")
        begin = asyncio.get_running_loop().time()
        network.partition(network.hosts[1])
        named = [await survivor.line("worker 1 on host-1") for survivor in survivors]
        assert asyncio.get_running_loop().time() - begin < 2 * seconds
        assert all("is gone" in line for line in named)
        assert [await survivor.ended for survivor in survivors] == [1, 1, 1]


@needs_namespaces
async def test_a_job_continues_after_a_cut_that_is_healed_in_time(tmp_path):
    async with Network(3) as network:
        job = await start(network, tmp_path, 40, workers=2, FLOWMX_KVSTORE_TIMEOUT="20")
        await job.processes["worker 1"].line("round 3")
        network.partition(network.hosts[1])
        await network.wait_for_drops(12)
        network.heal()
        await check_success(job, 2, 40)


@pytest.mark.soak
@needs_namespaces
async def test_a_job_survives_repeated_cuts(tmp_path):
    async with Network(4, Link(rate=100e6, latency=0.005, loss=0.005)) as network:
        job = await start(network, tmp_path, 200, workers=2, servers=2, FLOWMX_KVSTORE_TIMEOUT="30")
        for number in range(8):
            await job.processes["worker 0"].line(f"round {5 + 20 * number}")
            network.partition(network.hosts[number % 4])
            await network.wait_for_drops(10)
            network.heal()
        await check_success(job, 2, 200)
