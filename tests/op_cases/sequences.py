"""Losses of sequences."""

from tests.op_cases.case import Case, fixed

LABELS = [[1, 2, 0, 0], [3, 3, 1, 3], [4, 0, 0, 0], [0, 0, 0, 0]]
# MXNet leaves uninitialized memory in the gradient of a sample that is too short for its labels.
ODD = [[1, 2, 2, 2], [3, 3, 3, 3], [2, 1, 2, 1], [0, 4, 4, 4]]

CASES = [
    case
    for name in ("CTCLoss", "_contrib_ctc_loss")
    for case in (
        Case(name, [(7, 4, 5), fixed(LABELS)], wrt=(0,)),
        Case(name, [(5, 4, 5), fixed(ODD)], wrt=(0,), same_gradient=False, note="too short"),
    )
]
CASES += [
    Case("CTCLoss", [(7, 4, 5), fixed([[1, 2, -1], [3, 3, 0], [0, -1, -1], [-1, -1, -1]])], {"blank_label": "last"},
         wrt=(0,)),
    Case("CTCLoss", [(7, 4, 5), fixed(ODD), fixed([3, 2, 4, 0])], {"use_label_lengths": True}, wrt=(0,)),
    Case("CTCLoss", [(7, 4, 5), fixed(LABELS), fixed([4, 7, 1, 2])], {"use_data_lengths": True}, wrt=(0,)),
    Case("CTCLoss", [(7, 4, 5), fixed(ODD), fixed([4, 7, 6, 1]), fixed([3, 4, 1, 0])],
         {"use_data_lengths": True, "use_label_lengths": True}, wrt=(0,)),
    Case("CTCLoss", [lambda rng: rng.standard_normal((12, 3, 6)) * 30, fixed([[1, 2, 5], [3, 3, 0], [4, 4, 4]])],
         wrt=(0,), numeric=False, note="peaked"),
]  # fmt: skip
