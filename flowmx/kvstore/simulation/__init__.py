"""Simulation of distributed training: the real store's code, on simulated time and networks.

What is real: the placing of keys, what a worker sends when (:class:`~flowmx.kvstore.worker.sender.Sender`), and the
servers with their state machine, backups included. What is simulated: time (:mod:`.clock`), the network
(:mod:`.network`), and everything that computes, whose durations were measured (:mod:`.profile`).
"""

from flowmx.kvstore.simulation.job import Setting, simulate
from flowmx.kvstore.simulation.network import Network
from flowmx.kvstore.simulation.profile import Costs, Profile

__all__ = ["Costs", "Network", "Profile", "Setting", "simulate"]
