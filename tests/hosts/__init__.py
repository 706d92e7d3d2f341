"""Simulated hosts (network namespaces) whose links have a given bandwidth, latency and loss; they run real nodes."""

from tests.hosts.job import HostedJob
from tests.hosts.namespace import unavailable
from tests.hosts.network import Host, Network
from tests.hosts.process import Process
from tests.hosts.wire import Link, Wire

__all__ = ["Host", "HostedJob", "Link", "Network", "Process", "Wire", "unavailable"]
