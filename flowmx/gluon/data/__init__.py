"""Data sets, samplers and loaders: ``mx.gluon.data``."""

from flowmx.gluon.data import batchify, dataset, sampler, vision
from flowmx.gluon.data.dataset import ArrayDataset, Dataset, RecordFileDataset, SimpleDataset
from flowmx.gluon.data.loader import DataLoader
from flowmx.gluon.data.sampler import (
    BatchSampler,
    FilterSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SplitSampler,
)
from flowmx.gluon.data.workers import DataLoaderTimeout, DataLoaderWorkerError

__all__ = [
    "ArrayDataset", "BatchSampler", "DataLoader", "DataLoaderTimeout", "DataLoaderWorkerError", "Dataset",
    "FilterSampler", "RandomSampler", "RecordFileDataset", "Sampler", "SequentialSampler", "SimpleDataset",
    "SplitSampler", "batchify", "dataset", "sampler", "vision",
]  # fmt: skip
