"""Non-maximum suppression: each box is compared with those that are left before it, a vector of them at a time.

Surviving boxes move to the front of their planes, over boxes that have been decided, so that a box is compared with
contiguous boxes; the first one that drops it ends the comparison.
"""

from __future__ import annotations

import struct
from functools import lru_cache, partial

import numpy as np

from flowmx.ops.kernels.llvm import team
from flowmx.ops.kernels.llvm.assembly import DOUBLE, FLOAT, Code, FloatType, Value
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.registry.operators import Array
from flowmx.ops.vision.suppression import Boxes, Rule, suppressor

_SHARED = 256
"""The minimum number of boxes of an example for which several threads are faster."""
_FLOAT_TYPES = {np.dtype(np.float32): FLOAT, np.dtype(np.float64): DOUBLE}
_pack = struct.Struct("5q2d3q").pack


def _text(real: FloatType, kinds: bool, reached: bool, features: frozenset[str]) -> str:
    """A task for each example; planes (batch, 5 or 6, boxes) hold corners, areas and classes."""
    code = Code(real, features)
    size, most, length = code.word(), code.word(), code.word()
    threshold, margin = code.number(), code.number()
    planes, counts, keep = code.array(), code.array(), code.array()
    zero = code.constant(0.0)
    with code.tasks() as example:
        start, row = code.times(example, length), code.times(example, size)
        columns = [code.plus(start, code.times(size, at)) for at in range(5 + kinds)]
        left = code.local(code.index(0))
        count = code.least(code.load_index(counts, example), size)
        with code.loop(code.index(0), count) as box:
            ones = [code.load_one(planes, code.plus(column, box)) for column in columns]
            kept_box = [code.spread(one) for one in ones]
            survivors, dropped = code.get(left), code.local(Value("i1", "false"))

            def compare(
                index: Value, mask: Value | None, kept_box: list[Value] = kept_box, dropped: Value = dropped
            ) -> None:  # fmt: skip
                its = [code.load(planes, code.plus(column, index), mask) for column in columns]
                sides = []
                for low, high in ((0, 2), (1, 3)):
                    inner = code.choose(code.compare("olt", its[high], kept_box[high]), its[high], kept_box[high])
                    outer = code.choose(code.compare("ogt", its[low], kept_box[low]), its[low], kept_box[low])
                    side = code.binary("fadd", code.binary("fsub", inner, outer), margin)
                    sides.append(code.choose(code.compare("ogt", side, zero), side, zero))
                common = code.binary("fmul", *sides)
                union = code.binary("fsub", code.binary("fadd", its[4], kept_box[4]), common)
                overlap = code.binary("fdiv", common, union)
                over = code.compare("oge" if reached else "ogt", overlap, threshold)
                if kinds:
                    over = code.both(over, code.compare("oeq", its[5], kept_box[5]))
                if mask is not None:
                    over = code.both(over, mask)
                code.set(dropped, code.any(over))

            code.until(dropped, code.index(0), survivors, compare)
            room = code.put("i1", f"icmp ult {survivors}, {most.name}")
            stays = code.both(room, code.inverse(code.get(dropped)))
            place = code.put("ptr", f"getelementptr i8, {keep}, {code.plus(row, box)}")
            code.do(f"store {code.put('i8', f'zext {stays} to i8')}, {place}")
            with code.when(stays):
                for column, one in zip(columns, ones, strict=True):
                    code.store_one(one, planes, code.plus(column, survivors))
                code.set(left, code.plus(survivors, 1))
    return code.finish()


@lru_cache
def _program(real: FloatType, kinds: bool, reached: bool) -> Program:
    return Program(partial(_text, real, kinds, reached))


@suppressor("cpu")
def keep_mask(boxes: Boxes, rule: Rule) -> Array | None:
    """Return the mask of surviving boxes (batch, boxes), bool; None if it is not compiled (yet)."""
    real = _FLOAT_TYPES.get(boxes.areas.dtype)
    if real is None or rule.threshold < 0 or (rule.reached and not rule.threshold):
        return None
    compiled = _program(real, boxes.kinds is not None, rule.reached).get()
    if compiled is None:
        return None
    batch, size = boxes.areas.shape
    planes = np.empty((batch, 5 + (boxes.kinds is not None), size), boxes.areas.dtype)
    planes[:, :2], planes[:, 2:4] = boxes.low.transpose(0, 2, 1), boxes.high.transpose(0, 2, 1)
    # A comparison with NaN drops nothing: the area carries it, since minima and maxima may lose it.
    with np.errstate(all="ignore"):
        np.add(boxes.areas, 0 * (planes[:, 0] + planes[:, 1] + planes[:, 2] + planes[:, 3]), out=planes[:, 4])
    if boxes.kinds is not None:
        planes[:, 5] = boxes.kinds
    mask = np.zeros((batch, size), bool)
    most = size if rule.most < 0 else rule.most
    counts = np.ascontiguousarray(boxes.counts, np.int64)
    words = _pack(
        0, batch, size, most, planes.shape[1] * size, rule.threshold, rule.margin, id(planes), id(counts), id(mask)
    )
    team.run(compiled, words, team.count() if batch > 1 and size >= _SHARED else 1)
    return mask
