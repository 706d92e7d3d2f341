"""The fused recurrent layers."""

from tests.op_cases.case import Case, fixed

TIME, BATCH, FEATURES, UNITS = 4, 3, 2, 3
GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}


def rnn(mode, layers=1, bidirectional=False, projection=None, time=TIME, note="", lengths=None, scale=0.5, **more):
    """Return a case of RNN with small parameters."""
    directions = 2 if bidirectional else 1
    outputs = projection or UNITS
    rows = GATES[mode] * UNITS * directions
    size = rows * sum((directions * outputs if layer else FEATURES) + outputs + 2 for layer in range(layers))
    size += (projection or 0) * UNITS * directions * layers
    inputs = [(time, BATCH, FEATURES), lambda rng: rng.standard_normal(size) * scale,
              (layers * directions, BATCH, outputs)]  # fmt: skip
    if mode == "lstm":
        inputs.append((layers * directions, BATCH, UNITS))
    differentiable = tuple(range(len(inputs)))
    params = {"mode": mode, "state_size": UNITS, "num_layers": layers, **more}
    if bidirectional:
        params["bidirectional"] = True
    if projection:
        params["projection_size"] = projection
    # On a CPU, MXNet ignores lengths and clipping, has no gradient of projections, and other dropout masks.
    recorded = not lengths and not more.get("p") and "lstm_state_clip_min" not in more
    if lengths:
        inputs.append(fixed(lengths))
        params["use_sequence_length"] = True
    if projection and recorded:
        return [
            Case("RNN", inputs, params, train=False, numeric=False, gradient=False, note=note or "as MXNet predicts"),
            Case("RNN", inputs, params, wrt=differentiable, recorded=False, note=note),
        ]
    return [Case("RNN", inputs, params, wrt=differentiable, recorded=recorded, note=note)]


CASES = [
    case
    for mode in GATES
    for cases in (
        rnn(mode),
        rnn(mode, state_outputs=True),
        rnn(mode, layers=2, bidirectional=True, state_outputs=True),
        rnn(mode, layers=3),
        rnn(mode, time=1, bidirectional=True, state_outputs=True, note="one step"),
        rnn(mode, layers=2, p=0.4),
        rnn(mode, layers=2, bidirectional=True, state_outputs=True, lengths=[2, 4, 1]),
        rnn(mode, lengths=[3, 1, 4]),
    )
    for case in cases
]
CASES += [
    *rnn("lstm", projection=2, state_outputs=True),
    *rnn("lstm", projection=2, layers=2, bidirectional=True, state_outputs=True),
    *rnn("lstm", projection=2, layers=2, bidirectional=True, state_outputs=True, lengths=[2, 4, 3]),
    *rnn("lstm", layers=2, state_outputs=True, lstm_state_clip_min=-0.4, lstm_state_clip_max=0.5),
    *rnn("lstm", projection=2, bidirectional=True, lengths=[2, 4, 3], lstm_state_clip_min=-0.4,
         lstm_state_clip_max=0.5),
]  # fmt: skip
