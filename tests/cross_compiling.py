"""Compile the loops' LLVM assembly for a processor of another architecture, aarch64."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

__all__ = ["FEATURES", "check_text", "compile_for_aarch64"]

FEATURES = frozenset({"neon", "fp-armv8", "fullfp16", "dotprod", "crc", "lse", "rdm"})
"""Features of such a processor, as LLVM names them."""
_UNORDERED = re.compile(r"\b(reassoc|fast|contract|llvm\.vector\.reduce\.f(?:add|mul)\S*)\b")
"""Computations whose order, and so whose rounding, LLVM chooses."""
_OTHER = re.compile(r"@llvm\.(x86|arm|ppc|s390|riscv)\.[\w.]+")


@cache
def _target() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    features = ",".join(f"+{feature}" for feature in sorted(FEATURES))
    return llvm.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(
        cpu="generic", features=features, opt=0, reloc="pic", codemodel="small"
    )


def check_text(text: str) -> None:
    """Check that a text has no instruction of another architecture, and no computation without an order.

    Raises:
        AssertionError: it has.
    """
    foreign = _OTHER.search(text)
    assert foreign is None, f"{foreign[0]} is no instruction of aarch64"
    unordered = _UNORDERED.search(text)
    assert unordered is None, f"the result of {unordered[0]} depends on the processor and on the optimization"


def compile_for_aarch64(text: str) -> bytes:
    """Return the object code of a text.

    Raises:
        RuntimeError: LLVM refuses the text.
    """
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(text)
    module.triple = "aarch64-unknown-linux-gnu"
    module.verify()
    code: bytes = _target().emit_object(module)
    return code
