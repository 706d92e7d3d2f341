"""The cross-entropy of logits and class numbers, and its gradient: a row formula, and a loop over the labels."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flowmx.ops.formulas.expressions import Expr, Parameters
from flowmx.ops.kernels.llvm import team
from flowmx.ops.kernels.llvm.assembly import FLOAT, Code
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.llvm.gather import INDEX_TYPES, position
from flowmx.ops.kernels.llvm.row_loops import Kind, Row, Rows
from flowmx.ops.kernels.llvm.softmax import PLAIN, log_softmax
from flowmx.ops.kernels.recording import mark_incomplete
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.kernels import Kernel, register_kernel
from flowmx.ops.registry.operators import Array, Bound, Form, Operator, Run

Call = Callable[..., None]


def _scaled_softmax(p: Parameters, row: Row, logs: Expr, head: Expr) -> Expr:
    """Return the gradient of the logits, except at the row's class."""
    return row.exp(logs) * head


_logs = Rows(Kind(), log_softmax)
_gradients = Rows(Kind(full=1, singles=1), _scaled_softmax)


def _pick(kind: str, features: frozenset[str]) -> str:
    """``out[i] = -logs[i, label[i]]``."""
    code = Code(FLOAT, features)
    count, classes = code.word(), code.word()
    logs, label, out = code.array(), code.array(), code.array()
    with code.tasks(), code.loop(code.index(0), count) as row:
        place = code.plus(code.times(row, classes), position(code, label, row, kind, "clip", classes))
        value = code.load_one(logs, place)
        code.store_one(code.put(value.type, f"fneg {value}"), out, row)
    return code.finish()


def _subtract(kind: str, features: frozenset[str]) -> str:
    """``out[i, label[i]] -= head[i]``."""
    code = Code(FLOAT, features)
    count, classes = code.word(), code.word()
    head, label, out = code.array(), code.array(), code.array()
    with code.tasks(), code.loop(code.index(0), count) as row:
        place = code.plus(code.times(row, classes), position(code, label, row, kind, "clip", classes))
        code.store_one(code.binary("fsub", code.load_one(out, place), code.load_one(head, row)), out, place)
    return code.finish()


_pack = struct.Struct("4q").pack
_pack_places = struct.Struct("3q").pack
_picks = {kind: Program(partial(_pick, kind)) for kind in INDEX_TYPES.values()}
_subtractions = {kind: Program(partial(_subtract, kind)) for kind in INDEX_TYPES.values()}


class _AtLabels(Kernel):
    """The kernel of an operator on logits and labels.

    Args:
        rows: the row formula.
        programs: the loops over labels, by the type of the labels.
        data: the position of the data among the inputs.
    """

    only_native = True
    records_calls = True

    def __init__(self, rows: Rows, programs: dict[str, Program], data: int) -> None:
        self._rows, self._programs, self._data = rows, programs, data

    def compute(self, op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute the operator."""
        forms = [[(array.shape, array.dtype) for array in arrays] for arrays in (inputs, outputs)]
        bound = self.bind(op, *forms)
        (bound or partial(_compute_plainly, op))(run, inputs, outputs)

    def bind(self, op: Operator, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
        """Return the kernel specialized for arrays of these shapes and dtypes."""
        (rows, classes), dtype = in_forms[self._data]
        kind = INDEX_TYPES.get(in_forms[self._data + 1][1])
        if dtype != FLOAT32 or kind is None or not rows or not classes:
            return None
        call = self._rows.bind(PLAIN, (rows, classes, 1), [FLOAT32] * (2 + self._data))
        program: Any = self._programs[kind]  # its function is replaced by an optimized one
        if call is None or program.get() is None:
            return None
        head = _pack(0, 1, rows, classes)
        compute = _gradient if self._data else _loss

        def at_labels(*arrays: Array) -> None:
            team.run(program.compiled, head + _pack_places(*map(id, arrays)), 1, arrays)

        def bound(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            for each in (*inputs, *outputs):
                if not each.flags.c_contiguous:
                    _compute_plainly(op, run, inputs, outputs)
                    return
            compute(call, at_labels, inputs, outputs)

        return bound


def _compute_plainly(op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Compute the operator by the array library, except for the softmax."""
    mark_incomplete()
    op.forward(run, inputs, outputs)


def _loss(rows: Call, pick: Call, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    (data, label), (out, logs) = inputs, outputs
    rows(data, logs)
    pick(logs, label, out)


def _gradient(rows: Call, subtract: Call, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    (head, _, label, logs), out = inputs, outputs[0]
    rows(logs, head, out)
    subtract(head, label, out)


register_kernel("cpu", "_class_cross_entropy", _AtLabels(_logs, _picks, 0))
register_kernel("cpu", "_backward_class_cross_entropy", _AtLabels(_gradients, _subtractions, 1))
