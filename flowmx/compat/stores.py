"""What packages take from ``mxnet.gluon.utils`` and the model store: where files are."""

from __future__ import annotations

from flowmx import settings

__all__ = ["_get_repo_file_url", "_get_repo_url"]


def _get_repo_url() -> str:
    """The address of MXNet's models and data sets: ``MXNET_GLUON_REPO`` where it is set."""
    address = settings.fresh("gluon_repo")
    return address if address.endswith("/") else f"{address}/"


def _get_repo_file_url(namespace: str, filename: str) -> str:
    """The address of a file in a folder of that repository."""
    return f"{_get_repo_url()}{namespace}/{filename}"
