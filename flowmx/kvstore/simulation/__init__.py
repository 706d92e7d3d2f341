"""Simulation of distributed training: the code of the real store, with simulated time and networks.

The placement of keys, the workers' sender (:class:`~flowmx.kvstore.worker.sender.Sender`) and the servers with their
backups are the real code. Time (:mod:`.clock`), the network (:mod:`.network`) and all computation are simulated, with
measured durations (:mod:`.profile`).
"""

from flowmx.kvstore.simulation.job import Setting, simulate
from flowmx.kvstore.simulation.network import Network
from flowmx.kvstore.simulation.profile import Costs, Profile

__all__ = ["Costs", "Network", "Profile", "Setting", "simulate"]
