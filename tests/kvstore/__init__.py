"""Tests of stores, servers and distributed training."""
