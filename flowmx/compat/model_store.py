"""Private helpers of ``mxnet.gluon.utils`` and the model store: URLs of files in the repository."""

from __future__ import annotations

from flowmx.download import repository as _get_repo_url

__all__ = ["_get_repo_file_url", "_get_repo_url"]


def _get_repo_file_url(namespace: str, filename: str) -> str:
    """Return the URL of a file in a folder of the repository."""
    return f"{_get_repo_url()}{namespace}/{filename}"
