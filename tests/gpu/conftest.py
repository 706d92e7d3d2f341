"""Tests on a real GPU: ``pytest tests/gpu``. Without a GPU they are skipped with the reason."""

import pytest

import flowmx as mx


def missing():
    """The reason why there is no GPU to test on, or None if there is one."""
    try:
        return None if mx.num_gpus() else "there is no GPU here, or no CuPy"
    except Exception as error:
        return str(error)


def pytest_collection_modifyitems(items):
    reason = missing()
    for item in items:
        if "/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.timeout(600))
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def cp():
    return pytest.importorskip("cupy")
