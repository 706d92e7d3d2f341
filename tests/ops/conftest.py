"""Every loop that the tests of a file use is written for aarch64, too, and some of each kind are compiled for it."""

import platform
from collections import Counter
from functools import partial

import pytest

from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.llvm.packed_product import instructions_of
from tests.cross_compiling import FEATURES, check_text, compile_for_aarch64

COMPILED = 2
"""Programs of each kind that are compiled: it takes up to a second."""


@pytest.fixture(scope="module", autouse=True)
def programs_for_aarch64():
    """Check the programs that the tests of a file create, after the tests."""
    writers, create = [], Program.__init__

    def record(self, write, *args, **options):
        create(self, write, *args, **options)
        writers.append(write)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Program, "__init__", record)
        yield
        if writers:
            pytest.importorskip("llvmlite")
        patch.setattr(platform, "machine", lambda: "aarch64")
        counts = Counter()
        for write in writers:
            function = getattr(write, "func", write)
            kind = function.__module__, function.__qualname__
            if not function.__module__.startswith("flowmx."):
                continue  # a test's own program
            text = _for_aarch64(write)(FEATURES)
            check_text(text)
            counts[kind] += 1
            if counts[kind] <= COMPILED:
                compile_for_aarch64(text)


def _for_aarch64(write):
    """Return the writer of a program as it would be on aarch64: some keys have the instructions to use."""
    if isinstance(write, partial) and write.args and hasattr(write.args[0], "instructions"):
        kind, *more = write.args
        return partial(write.func, kind._replace(instructions=instructions_of(FEATURES)), *more, **write.keywords)
    return write
