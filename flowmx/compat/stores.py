"""Private helpers of ``mxnet.gluon.utils`` and the model store: addresses of files in the repository."""

from __future__ import annotations

from flowmx.download import repository as _get_repo_url

__all__ = ["_get_repo_file_url", "_get_repo_url"]


def _get_repo_file_url(namespace: str, filename: str) -> str:
    """The address of a file in a folder of that repository."""
    return f"{_get_repo_url()}{namespace}/{filename}"
