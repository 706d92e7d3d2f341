"""Profile a few operations."""

import tempfile
from pathlib import Path

import flowmx as mx

with tempfile.TemporaryDirectory() as folder:
    mx.profiler.set_config(profile_all=True, aggregate_stats=True, filename=str(Path(folder) / "profile.json"))
    mx.profiler.set_state("run")
    with mx.profiler.Task(mx.profiler.Domain("editor"), "work"):
        mx.nd.dot(mx.nd.ones((8, 8)), mx.nd.ones((8, 8))).wait_to_read()
    mx.profiler.set_state("stop")
    assert "dot" in mx.profiler.dumps(reset=True)
