"""Initializers, compared with MXNet's values (exact ones) or with their distribution (random ones)."""

import json

import numpy as np
import pytest

import flowmx as mx
from tests.fixtures import record_training as recorded

RECORDS = json.loads((recorded.FOLDER / "initializers.json").read_text())


@pytest.mark.parametrize("case", recorded.INITIALIZERS, ids=str)
def test_matches_the_record(case):
    record = RECORDS[str(case)]
    mx.random.seed(1)
    dumped, content = recorded.run_initializer(mx, *case)
    assert dumped == record[0]
    if case[0] in recorded.EXACT:
        np.testing.assert_allclose(content, record[1], rtol=1e-6)
    else:
        np.testing.assert_allclose(content[2], record[1][2], rtol=0.03)
        bounded = case[0] == "Uniform" or case[1].get("rnd_type", "uniform") == "uniform"
        if bounded and case[0] in ("Uniform", "Xavier"):
            np.testing.assert_allclose(content[:2], record[1][:2], rtol=0.01)


def initialize(initializer, name, shape=(4, 6), attrs=None):
    array = mx.nd.full(shape, 7)
    initializer(mx.init.InitDesc(name, attrs), array)
    return array.asnumpy()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a_bias", 0),
        ("a_gamma", 1),
        ("a_beta", 0),
        ("a_moving_mean", 0),
        ("a_moving_var", 1),
        ("q_min", 0),
        ("q_max", 1),
    ],
)
def test_names_select_the_kind_of_parameter(name, value):
    assert (initialize(mx.init.Uniform(), name) == value).all()


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="no rule for the parameter 'thing'"):
        initialize(mx.init.Uniform(), "thing")
    with pytest.raises(NotImplementedError, match="must implement _init_weight"):
        initialize(mx.init.Initializer(), "a_weight")


def test_the_initializer_of_a_variable_takes_precedence():
    assert (initialize(mx.init.Uniform(), "a_bias", attrs={"__init__": mx.init.Constant(3).dumps()}) == 3).all()
    assert (initialize(mx.init.Uniform(), "thing", attrs={"__init__": "ones"}) == 1).all()


def test_the_same_seed_gives_the_same_numbers():
    for initializer in (mx.init.Xavier(), mx.init.Normal(), mx.init.Orthogonal()):
        arrays = []
        for _ in range(2):
            mx.random.seed(3)
            arrays.append(initialize(initializer, "a_weight"))
        assert (arrays[0] == arrays[1]).all()
        assert (initialize(initializer, "a_weight") != arrays[0]).any()


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (3, 2, 2)])
def test_orthogonal_weights_are_orthogonal(shape):
    matrix = initialize(mx.init.Orthogonal(2.0), "a_weight", shape).reshape(shape[0], -1)
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    np.testing.assert_allclose(gram, 4 * np.eye(len(gram)), atol=1e-5)


def test_initializers_of_other_dtypes():
    array = mx.nd.full((50, 50), 0, dtype=np.float16)
    mx.init.Xavier()("a_weight", array)
    assert 0.1 < array.asnumpy().std() < 0.2


def test_create_reads_names_and_json():
    assert mx.init.create("xavier", magnitude=2) == mx.init.Xavier(magnitude=2)
    assert mx.init.create('["normal", {"sigma": 0.5}]') == mx.init.Normal(0.5)
    assert mx.init.create(mx.init.MSRAPrelu(slope=0.1).dumps()) == mx.init.MSRAPrelu(slope=0.1)
    assert mx.init.create('{"initializer": "normal", "sigma": 0.5}') == mx.init.Normal(0.5)
    assert isinstance(mx.init.create("zeros"), mx.init.Zero)
    assert mx.init.Normal(0.5) != mx.init.Normal(0.4)
    with pytest.raises(ValueError, match="unknown initializer 'xavierr'; did you mean 'xavier'"):
        mx.init.create("xavierr")
    with pytest.raises(TypeError, match="the initializer is 5, expected a name"):
        mx.init.create(5)


def test_custom_initializers_can_be_registered():
    @mx.init.register
    @mx.init.alias("my_own")
    class MyInit(mx.init.Initializer):
        def _init_weight(self, name, arr):
            arr[:] = 0.25

        def _init_bias(self, name, arr):
            arr[:] = 4

    assert (initialize(mx.init.create("myinit"), "a_weight") == 0.25).all()
    assert (initialize(mx.init.create("my_own"), "a_bias") == 4).all()


def test_mixed_takes_the_first_pattern_that_matches():
    mixed = mx.init.Mixed(["fc1_.*", ".*weight"], [mx.init.One(), mx.init.Zero()])
    assert (initialize(mixed, "fc1_weight") == 1).all()
    assert (initialize(mixed, "fc2_weight") == 0).all()
    with pytest.raises(ValueError, match="no pattern matches the parameter 'fc2_bias'"):
        initialize(mixed, "fc2_bias")
    with pytest.raises(ValueError, match="1 patterns and 0 initializers"):
        mx.init.Mixed([".*"], [])


def test_load_copies_its_arrays(tmp_path):
    path = str(tmp_path / "a.params")
    mx.nd.save(path, {"arg:a_weight": mx.nd.full((4, 6), 3)})
    load = mx.init.Load(path, default_init=mx.init.One())
    assert (initialize(load, "a_weight") == 3).all()
    assert (initialize(load, "b_weight") == 1).all()
    with pytest.raises(ValueError, match=r"loaded with shape \(4, 6\), expected \(2, 2\)"):
        initialize(load, "a_weight", (2, 2))
    with pytest.raises(ValueError, match="parameter 'b' was not loaded"):
        initialize(mx.init.Load({}), "b")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mx.init.Xavier("x"), "expected 'uniform' or 'gaussian'"),
        (lambda: mx.init.Xavier(factor_type="x"), "expected 'avg', 'in' or 'out'"),
        (lambda: mx.init.Orthogonal(rand_type="x"), "expected 'uniform' or 'normal'"),
        (lambda: initialize(mx.init.Xavier(), "a_weight", (3,)), r"has shape \(3,\), expected at least two axes"),
        (lambda: initialize(mx.init.Bilinear(), "a_weight", (3, 3)), "expected four axes"),
    ],
)
def test_refuses_invalid_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_verbosity_logs_initializations(caplog):
    caplog.set_level("INFO")
    initialize(mx.init.One().set_verbosity(True), "a_weight")
    assert "Initialized a_weight as weight: 1.0" in caplog.text


def test_the_parts_of_a_fused_rnn_have_their_own_initializers():
    attrs = {"__init__": mx.init.FusedRNN(mx.init.Xavier(), 4, 2, "lstm", forget_bias=2.0).dumps()}
    packed = initialize(mx.init.One(), "parameters", (4 * 4 * (3 + 4 + 4 + 4 + 4),), attrs)
    weights, biases = packed[:-64], packed[-64:].reshape(4, 4, 4)
    assert (biases[:, 1] == 2).all()
    assert (biases[:, [0, 2, 3]] == 0).all()
    bound = np.sqrt(3 / ((4 + 3) / 2))
    assert 0.7 * bound < np.abs(weights[: 4 * 4 * 3]).max() <= bound


def test_a_fused_rnn_without_an_initializer_uses_that_of_the_model():
    attrs = {"__init__": mx.init.FusedRNN(None, 2, 1, "rnn_tanh").dumps()}
    assert initialize(mx.init.One(), "parameters", (14,), attrs).tolist() == [1.0] * 10 + [0.0] * 4


@pytest.mark.parametrize(
    ("mode", "size", "message"),
    [("tanh", 14, "mode is 'tanh', expected one of rnn_relu"), ("gru", 14, "has 14 elements, which do not match")],
)
def test_refuses_invalid_fused_rnns(mode, size, message):
    with pytest.raises(ValueError, match=message):
        initialize(mx.init.FusedRNN(mx.init.One(), 2, 1, mode), "a_weight", (size,))


def initialize_without_desc(name, shape, initializer=None):
    array = mx.nd.full(shape, 7)
    (initializer or mx.init.One())(name, array)
    return array.asnumpy()


def test_old_parameter_names():
    kernel = initialize(mx.init.Bilinear(), "a_weight", (2, 1, 4, 4))
    assert (initialize_without_desc("upsampling0_weight", (2, 1, 4, 4)) == kernel).all()
    assert (initialize_without_desc("stn_loc_weight", (6, 2)) == 0).all()
    assert initialize_without_desc("stn_loc_bias", (6,)).tolist() == [1, 0, 0, 0, 1, 0]
    with pytest.raises(ValueError, match=r"has shape \(5,\), expected \(6,\)"):
        initialize_without_desc("stn_loc_bias", (5,))


def test_quantized_parameters():
    weight = initialize(mx.init.One(), "a_weight_quantize", (50,))
    assert len(set(weight.tolist())) > 5
    assert (np.abs(weight) <= 127).all()
    assert (weight == weight.round()).all()
    assert (initialize(mx.init.One(), "a_bias_quantize") == 0).all()
