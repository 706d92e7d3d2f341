"""Reports of files that flowmx's own trainings write: checkpoints, and snapshots of servers."""

from __future__ import annotations

from pathlib import Path

from flowmx.artifacts.report import Report, bytes_text
from flowmx.checkpoint import files
from flowmx.checkpoint.content import CheckpointError
from flowmx.kvstore.server import snapshot

__all__ = ["describe_run", "describe_server"]


def describe_run(path: Path) -> Report:
    """Describe a checkpoint of a training."""
    report = Report(path, "a checkpoint of a training by flowmx", {"size": bytes_text(path.stat().st_size)})
    try:
        checkpoint = files.load(path)
    except (CheckpointError, OSError) as error:
        report.problem = str(error)
        return report
    report.facts["position"] = f"epoch {checkpoint.place.epoch}, batch {checkpoint.place.batch}"
    report.facts["arrays"] = f"{len(checkpoint.arrays)}"
    report.commands.append(f"flowmx train --checkpoint {path.parent} SCRIPT")
    return report


def describe_server(path: Path) -> Report:
    """Describe the state of a server of a distributed training."""
    report = Report(path, "the state of a server of a KVStore", {"size": bytes_text(path.stat().st_size)})
    try:
        content = snapshot.load(path, borrow=True)
    except (snapshot.SnapshotError, OSError) as error:
        report.problem = str(error)
        return report
    report.facts["parts"] = f"{len(content.records)}"
    if content.job:
        report.facts["job"] = content.job
    report.commands.append(f"flowmx server --snapshot {path.parent}")
    return report
