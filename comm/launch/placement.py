"""Placement: the host on which a process of a job starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flowmx.comm.launch.hosts import Host

__all__ = ["choose_host"]


def choose_host(hosts: Sequence[Host], load: Counter[str], failures: Counter[str], former: Host | None = None) -> Host:
    """Choose the host for one more process.

    Hosts that were lost are chosen last, before them those without free slots. Otherwise processes are spread over
    machines, and then over the hosts of a machine.

    Args:
        hosts: the available hosts.
        load: the number of processes on each host, by name.
        failures: the number of losses of each host, by name.
        former: the former host of the process, where it should stay if possible.

    Raises:
        ValueError: there are no hosts.
    """
    if not hosts:
        raise ValueError("there is no host to start a process on")
    machines: Counter[str] = Counter()
    for host in hosts:
        machines[host.address] += load[host.name]

    def cost(host: Host) -> tuple[int, ...]:
        moved = () if former is None else (host.address != former.address, host.name != former.name)
        full = load[host.name] >= host.slots
        return failures[host.name], *moved, full, machines[host.address], load[host.name]

    return min(hosts, key=cost)  # the first of equally good ones
