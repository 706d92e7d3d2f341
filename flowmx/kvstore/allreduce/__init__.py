"""Sums over devices with memory of their own: many small arrays as one, concurrent with what the devices compute."""

from flowmx.kvstore.allreduce import nccl
from flowmx.kvstore.allreduce.communicator import Communicator, PeerCommunicator
from flowmx.kvstore.allreduce.exchange import Part, exchange, fits
from flowmx.kvstore.allreduce.nccl import NcclCommunicator

__all__ = ["Communicator", "NcclCommunicator", "Part", "PeerCommunicator", "exchange", "fits", "nccl"]
