"""Sums over devices with memory of their own: many small arrays as one, concurrent with what the devices compute."""

from flowmx.kvstore.joint import nccl
from flowmx.kvstore.joint.communicator import Communicator, PeerCommunicator
from flowmx.kvstore.joint.exchange import Part, exchange, fits
from flowmx.kvstore.joint.nccl import NcclCommunicator

__all__ = ["Communicator", "NcclCommunicator", "Part", "PeerCommunicator", "exchange", "fits", "nccl"]
