"""Sums over devices with separate memory: small arrays are sent in buckets, concurrently with computation."""

from flowmx.kvstore.allreduce import nccl
from flowmx.kvstore.allreduce.communicator import Communicator, PeerCommunicator
from flowmx.kvstore.allreduce.exchange import Part, exchange, fits
from flowmx.kvstore.allreduce.nccl import NcclCommunicator

__all__ = ["Communicator", "NcclCommunicator", "Part", "PeerCommunicator", "exchange", "fits", "nccl"]
