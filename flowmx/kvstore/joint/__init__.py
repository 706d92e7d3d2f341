"""Sums over devices with memory of their own: many small arrays as one, beside what the devices compute."""

from flowmx.kvstore.joint.communicator import Communicator, PeerCommunicator
from flowmx.kvstore.joint.exchange import Part, exchange, fits

__all__ = ["Communicator", "Part", "PeerCommunicator", "exchange", "fits"]
