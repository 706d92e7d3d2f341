"""Operators that replace several others on small arrays."""

from tests.op_cases.case import Case, fixed

CASES = [
    *(
        Case("_dense", [(3, 4), (5, 4), (5,)], {"num_hidden": 5, "act_type": kind}, second=True, recorded=False)
        for kind in ("sigmoid", "softrelu", "softsign", "tanh")
    ),
    Case("_dense", [(3, 2, 2), (5, 4)], {"num_hidden": 5, "no_bias": True, "act_type": "relu"}, recorded=False),
    Case("_class_cross_entropy", [(4, 5), fixed([0, 4, 2, 9])], wrt=(0,), second=True, recorded=False),
    Case("_gru_step", [(2, 9), (2, 9), (2, 3)], second=True, recorded=False),
    Case("_lstm_step", [(2, 12), (2, 12), (2, 3)], recorded=False),
]
