"""Parts of arrays, for the gradients of views and assignments."""

from typing import Any

from tests.op_cases.case import Case, fixed

_PLACE: dict[str, Any] = {"whole": (3, 4), "shape": (2, 2), "offset": 1, "strides": (8, -1)}
"""Rows 0 and 2, columns 1 and 0."""
_ROWS: dict[str, Any] = {"num_args": 2, "key": "@,1:3", "whole": (3, 4), "shape": (3, 2)}
_ROW_TWICE = fixed([2, 0, 2])

CASES = [
    Case("_part", [(3, 4)], _PLACE, second=True, recorded=False),
    Case("_embedded_part", [(2, 2)], _PLACE, second=True, recorded=False),
    Case("_without_part", [(3, 4)], _PLACE, second=True, recorded=False),
    Case("_without_chosen", [(3, 4), _ROW_TWICE], _ROWS, wrt=(0,), second=True, recorded=False),
    Case("_chosen_last", [(3, 4), _ROW_TWICE], _ROWS, wrt=(0,), second=True, recorded=False),
    Case("_assigned", [(3, 2), _ROW_TWICE], _ROWS, wrt=(0,), second=True, recorded=False),
]
