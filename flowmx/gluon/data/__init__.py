"""Data sets, samplers and loaders: ``mx.gluon.data``."""

from flowmx.gluon.data import batchify, bucket_sampler, dataset, sampler, vision
from flowmx.gluon.data.bucket_sampler import BucketSampler
from flowmx.gluon.data.dataset import ArrayDataset, Dataset, RecordFileDataset, SimpleDataset, random_split
from flowmx.gluon.data.loader import DataLoader
from flowmx.gluon.data.sampler import (
    BatchSampler,
    FilterSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SplitSampler,
    WeightedRandomSampler,
)
from flowmx.gluon.data.workers import DataLoaderTimeout, DataLoaderWorkerError
from flowmx.lazy import lazy_attributes

__all__ = [
    "ArrayDataset", "BatchSampler", "BucketSampler", "DataLoader", "DataLoaderTimeout", "DataLoaderWorkerError",
    "Dataset", "FilterSampler", "RandomSampler", "RecordFileDataset", "Sampler", "SequentialSampler", "SimpleDataset",
    "SplitSampler", "WeightedRandomSampler", "batchify", "bucket_sampler", "dataset", "random_split", "sampler",
    "vision",
]  # fmt: skip

__getattr__, __dir__ = lazy_attributes(__name__)
