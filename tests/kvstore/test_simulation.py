"""Training on simulated machines: time, the network, and jobs of the real store's code."""

import asyncio
import dataclasses
import json
import math
import re

import pytest

from benchmarks import figure8
from flowmx.kvstore.simulation import Costs, Network, Profile, Setting, clock, simulate
from flowmx.kvstore.simulation.network import Cpu, Fabric
from flowmx.kvstore.simulation.profile import PassStep
from flowmx.kvstore.worker.sender import HOLD_DELAY

FAST = Network(rate=math.inf, latency=0.0, local=math.inf)


def profile(layers=4, floats=250_000, seconds=1.0, **options):
    """Make the profile of a network of equal layers."""
    shapes = {f"w{layer}": (floats,) for layer in range(layers)}
    forward = [PassStep(seconds / (3 * layers), (key,)) for key in shapes]
    backward = [PassStep(2 * seconds / (3 * layers), (key,)) for key in reversed(shapes)]
    return Profile(32, shapes, forward, backward, **options)


# Time


def test_simulated_time_takes_no_real_time():
    async def sleeps():
        await asyncio.gather(asyncio.sleep(1e6), asyncio.sleep(2e6))
        return asyncio.get_running_loop().time()

    assert clock.run(sleeps()) == pytest.approx(2e6)


def test_a_deadlocked_simulation_raises():
    async def wait():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="is deadlocked"):
        clock.run(wait())


# The network


def carried(*transfers, network=None, machines=3):
    """Return the end times of transfers (from, to, bytes) that begin together."""

    async def carry():
        fabric = Fabric(machines, network or Network(rate=8e6, latency=0.0, piece=1000))

        async def one(source, target, nbytes):
            await fabric.send(source, target, nbytes)
            return asyncio.get_running_loop().time()

        return await asyncio.gather(*(one(*transfer) for transfer in transfers))

    return clock.run(carry())


def test_a_transfer_takes_its_bytes_and_the_latency():
    network = Network(rate=8e6, latency=0.5, piece=1000)
    assert carried((0, 1, 1_000_000), network=network) == [pytest.approx(1.5 + 0.001)]  # and a piece on the last link


def test_the_sender_is_notified_when_the_bytes_have_left():
    async def send(target):
        fabric, loop, times = Fabric(2, Network(rate=8e6, latency=0.5, piece=1000)), asyncio.get_running_loop(), []
        await fabric.send(0, target, 1_000_000, lambda: times.append(loop.time()))
        return times

    assert clock.run(send(1)) == [pytest.approx(1.0)]
    assert len(clock.run(send(0))) == 1


def test_transfers_share_a_common_link_evenly():
    for other in ((0, 2), (2, 1)):  # of one sender, to one receiver
        times = carried((0, 1, 1_000_000), (*other, 1_000_000))
        assert times == pytest.approx([2.0, 2.0], abs=0.01)


def test_a_small_transfer_does_not_wait_for_a_big_one():
    big, small = carried((0, 1, 1_000_000), (0, 1, 10_000))
    assert small == pytest.approx(0.02, abs=0.005)
    assert big == pytest.approx(1.01, abs=0.005)


def test_links_are_full_duplex():
    assert carried((0, 1, 1_000_000), (1, 0, 1_000_000)) == pytest.approx([1.0, 1.0], abs=0.01)


def test_within_a_machine_nothing_uses_the_link():
    network = Network(rate=8e6, latency=0.0, local=1e9)
    assert carried((0, 0, 1_000_000), (0, 1, 1_000_000), network=network) == pytest.approx([0.001, 1.0], abs=0.1)


def test_a_thread_runs_items_one_by_one():
    async def use():
        cpu, loop = Cpu(), asyncio.get_running_loop()
        await asyncio.gather(cpu.use(1.0), cpu.use(2.0))
        return loop.time()

    assert clock.run(use()) == pytest.approx(3.0)


@pytest.mark.parametrize("wrong", [{"rate": 0}, {"latency": -1}, {"local": 0}, {"piece": 0}])
def test_invalid_networks_are_refused(wrong):
    with pytest.raises(ValueError, match="a network needs"):
        Network(**wrong)


# Jobs


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("machines", [1, 2, 5])
def test_with_a_free_network_a_step_takes_its_computation(machines, overlap):
    step = simulate(Setting(profile(), machines, FAST, overlap))
    assert step == pytest.approx(1.0, abs=1e-6 + HOLD_DELAY)  # the last gradients may be held for others


def test_without_overlap_everything_is_sent_after_the_backward_pass():
    # Two machines, 4 MB of parameters: each sends and receives 2 MB as a worker and 2 MB as a server, one after the
    # other since nothing can be answered before all is there, and 2 MB of steps to the backup in between.
    step = simulate(Setting(profile(), 2, Network(rate=80e6, latency=0.0, local=math.inf), overlap=False))
    assert 1.6 < step < 1.65


def test_with_overlap_the_backward_pass_hides_communication():
    network = Network(rate=200e6, latency=0.0)
    layers = profile(layers=40, floats=25_000)
    with_overlap, without = (simulate(Setting(layers, 4, network, overlap)) for overlap in (True, False))
    assert with_overlap < 1.1
    assert without > 1.25


def test_a_big_key_on_one_server_delays_the_step():
    # All four send a key of 1 MB to one server, whose link then brings it back: the last one cannot be hidden.
    step = simulate(Setting(profile(), 4, Network(rate=80e6, latency=0.0, local=math.inf)))
    assert 1.7 < step < 2.0


def test_nothing_hides_what_takes_longer_than_computing():
    network = Network(rate=8e6, latency=0.0)  # 1 MB a second
    step = simulate(Setting(profile(), 4, network))
    # Of 4 MB each machine sends 3 as a worker and 3 as a server, and 1 to a backup.
    assert 7.0 <= step < 9.0


def test_a_burst_of_small_keys_is_sent_together():
    many = profile(layers=400, floats=10)
    network = Network(rate=math.inf, latency=0.1, local=math.inf)
    step = simulate(Setting(many, 2, network, overlap=False, steps=1))
    assert step < 1.0 + 20 * 0.1  # and not 400 round trips


def test_latency_and_costs_are_paid():
    slow = profile(costs=Costs(request=0.01, byte=1e-8, add=1e-7, update=1e-7))
    base = simulate(Setting(profile(), 2, FAST, overlap=False))
    assert simulate(Setting(profile(), 2, dataclasses.replace(FAST, latency=0.1), overlap=False)) > base + 0.35
    assert simulate(Setting(slow, 2, FAST, overlap=False)) > base + 0.2


def test_a_simulation_is_the_same_every_time():
    setting = Setting(profile(layers=20), 3, Network(rate=200e6))
    assert simulate(setting) == simulate(setting)


@pytest.mark.parametrize("wrong", [{"machines": 0}, {"steps": 0}])
def test_a_job_takes_machines_and_steps(wrong):
    with pytest.raises(ValueError, match="at least one"):
        simulate(Setting(profile(), **wrong))


# Profiles


def test_a_profile_at_another_speed_keeps_its_proportions_and_costs():
    result = profile(costs=Costs(request=0.5)).at(0.5)
    assert result.seconds == pytest.approx(0.5)
    assert result.forward[0].seconds == pytest.approx(0.5 / 12)
    assert result.costs.request == 0.5


def test_a_profile_must_have_every_parameter_once_in_each_pass():
    good = profile()
    named = re.escape(str(sorted(map(str, good.backward[0].keys))))
    for wrong in (good.backward[1:], [*good.backward, good.backward[0]]):
        with pytest.raises(ValueError, match=f"backward pass must list each parameter once: see {named}"):
            dataclasses.replace(good, backward=wrong)


def test_an_invalid_profile_is_refused(tmp_path):
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({"batch": 3}))
    with pytest.raises(ValueError, match=r"not a profile.*shapes"):
        Profile.load(file)


# Figure 8


def test_the_measured_profile_is_that_of_googlenet_with_batch_norm():
    result = Profile.load(figure8.PROFILE)
    assert len(result.shapes) == 209
    assert result.nbytes == 4 * 11_285_224
    assert result.about


def test_figure_8_has_its_tables_picture_and_bars(tmp_path):
    (tmp_path / "scaling.md").write_text(f"before {figure8.BEGIN} old {figure8.END} after")
    result = profile(about="today")
    figures = figure8.predict(result, [1, 10], planned=None)
    compared = [figure8.Compared(1.0, True, 92e6, real=2.0, predicted=2.2)]
    figure8.write(result, figures, compared, tmp_path)
    page = (tmp_path / "scaling.md").read_text()
    assert page.startswith("before ")
    assert page.endswith(" after")
    assert "old" not in page
    assert "| 10 |" in page
    assert "+10 %" in page
    assert (tmp_path / "figure8.svg").read_text().count("<polyline") > 9


def test_missed_bars_are_reported():
    figures = {
        name: {overlap: {10: figure8.Predicted(1.0, 1.0, 0.85)} for overlap in (True, False)} for name in figure8.SPEEDS
    }
    assert "0.85, MISSED" in figure8.bars(figures, [])
    wrong = figure8.Compared(1.0, True, 92e6, real=2.0, predicted=1.6)
    assert "20 % off, MISSED" in figure8.bars(figures, [wrong])
