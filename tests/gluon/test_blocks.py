"""Blocks: names, children, hooks, files."""

from __future__ import annotations

import numpy as np
import pytest

import flowmx as mx
from flowmx import gluon
from flowmx.gluon import nn

DATA = mx.nd.array(np.linspace(-1, 1, 6).reshape(2, 3))


class Model(gluon.Block):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.hidden = nn.Dense(4, activation="tanh")
            self.rest = nn.Sequential()
            with self.rest.name_scope():
                self.rest.add(nn.Dense(2), nn.Dense(2))

    def forward(self, x):
        return self.rest(self.hidden(x))


def initialize(block):
    block.initialize(mx.init.Xavier())
    block(DATA)
    return block


def test_names_follow_the_scopes():
    model = Model(prefix="model_")
    assert list(model.collect_params()) == [
        "model_dense0_weight", "model_dense0_bias", "model_sequential0_dense0_weight", "model_sequential0_dense0_bias",
        "model_sequential0_dense1_weight", "model_sequential0_dense1_bias",
    ]  # fmt: skip
    assert model.name == "model"
    assert model.hidden.name == "model_dense0"


def test_names_outside_any_scope_are_numbered():
    with mx.name.NameManager():
        assert [nn.Dense(1).name for _ in range(2)] == ["dense0", "dense1"]
        with mx.name.Prefix("stage_"):
            assert nn.Dense(1).name == "stage_dense0"


def test_an_empty_prefix_adds_no_scope():
    outer = nn.HybridSequential(prefix="outer_")
    with outer.name_scope():
        inner = nn.HybridSequential(prefix="")
        with inner.name_scope():
            assert nn.Dense(1).prefix == "outer_dense0_"


def test_collects_matching_parameters():
    model = Model(prefix="m_")
    assert list(model.collect_params(".*dense0_weight")) == ["m_dense0_weight", "m_sequential0_dense0_weight"]
    assert list(model.params) == []


def test_blocks_share_parameters():
    first = nn.Dense(4, in_units=3, prefix="shared_")
    second = nn.Dense(4, in_units=3, params=first.params)
    first.initialize()
    assert second.weight is first.weight
    assert np.array_equal(second(DATA).asnumpy(), first(DATA).asnumpy())


def test_attributes_keep_their_type():
    model = Model()
    with pytest.raises(TypeError, match=r"Model\.hidden is a Dense, and cannot become a int"):
        model.hidden = 3
    dense = nn.Dense(1)
    with pytest.raises(ValueError, match=r"Dense\.weight is already the parameter"):
        dense.weight = gluon.Parameter("other")
    model.hidden = nn.Dense(7)
    assert model.collect_params(".*weight")[model.hidden.weight.name].shape == (7, 0)


def test_warns_of_blocks_in_a_list():
    model = Model()
    model.more = [nn.Dense(1)]
    with pytest.warns(UserWarning, match="Model.more holds blocks that are not registered"):
        model.collect_params()
    model.register_child(model.more[0])
    assert len(model.collect_params()) == 8


def test_hooks_see_inputs_and_outputs():
    model = initialize(Model())
    calls = []
    before = model.hidden.register_forward_pre_hook(lambda block, inputs: calls.append((block, inputs)))
    with model.hidden.register_forward_hook(lambda block, inputs, output: calls.append(output.shape)):
        model(DATA)
    assert calls == [(model.hidden, (DATA,)), (2, 4)]
    before.detach()
    model(DATA)
    assert len(calls) == 2


def test_apply_calls_children_first():
    names = []
    model = Model(prefix="m_")
    assert model.apply(lambda block: names.append(block.name)) is model
    assert names == ["m_dense0_tanh", "m_dense0", "m_sequential0_dense0", "m_sequential0_dense1", "m_sequential0", "m"]


def test_saves_and_loads_by_structure(tmp_path):
    model = initialize(Model())
    model.save_parameters(tmp_path / "model.params")
    assert "rest.1.weight" in mx.nd.load(str(tmp_path / "model.params"))
    other = Model()
    other.load_parameters(tmp_path / "model.params", ctx=mx.cpu(1))
    assert np.array_equal(other(DATA.as_in_context(mx.cpu(1))).asnumpy(), model(DATA).asnumpy())


def test_loads_parameters_saved_under_full_names(tmp_path):
    model = initialize(Model(prefix="m_"))
    for prefix in ("", "m_"):
        model.collect_params().save(tmp_path / "model.params", strip_prefix=prefix)
        other = Model(prefix="m_")
        other.load_parameters(tmp_path / "model.params")
        assert np.array_equal(other(DATA).asnumpy(), model(DATA).asnumpy())


def test_a_shared_parameter_may_be_saved_once(tmp_path):
    net = nn.HybridSequential()
    first = nn.Dense(3)
    net.add(first, nn.Dense(3, params=first.params))
    initialize(net)
    net.save_parameters(tmp_path / "all.params")
    net.save_parameters(tmp_path / "once.params", deduplicate=True)
    assert [len(mx.nd.load(str(tmp_path / f"{name}.params"))) for name in ("all", "once")] == [4, 2]
    net.load_parameters(tmp_path / "once.params")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda params: params.pop("hidden.bias"), "'hidden.bias' is missing"),
        (lambda params: params.update({"more.weight": DATA}), "holds 'more.weight', which is not among"),
        (lambda params: params.update({"hidden.bias": DATA}), r"loaded with shape \(2, 3\), expected \(4,\)"),
    ],
)
def test_refuses_files_that_do_not_match(tmp_path, change, message):
    model = initialize(Model())
    model.save_parameters(tmp_path / "model.params")
    params = mx.nd.load(str(tmp_path / "model.params"))
    change(params)
    mx.nd.save(str(tmp_path / "changed.params"), params)
    with pytest.raises(ValueError, match=message):
        model.load_parameters(tmp_path / "changed.params")


def test_a_container_is_a_sequence():
    net = nn.HybridSequential()
    layers = [nn.Dense(1), nn.Flatten(), nn.Dense(2)]
    net.add(*layers)
    assert list(net) == layers
    assert len(net) == 3
    assert net[-1] is layers[2]
    assert list(net[1:]) == layers[1:]


def test_a_sequential_of_hybrid_blocks_warns():
    net = nn.Sequential()
    net.add(nn.Dense(1))
    with pytest.warns(UserWarning, match="HybridSequential compiles"):
        net.hybridize()


def test_a_hybrid_block_accepts_only_hybrid_children():
    with pytest.raises(TypeError, match="children of a HybridBlock must be HybridBlocks, and Sequential is not one"):
        nn.HybridSequential().add(nn.Sequential())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: nn.Conv2D(1, (3, 3, 3)), ValueError, "kernel_size is"),
        (lambda: nn.Conv1D(1, 3, layout="NWC"), ValueError, "layout is 'NWC', expected NCW"),
        (lambda: nn.MaxPool2D(padding=(1,)), ValueError, "padding is"),
        (lambda: nn.LeakyReLU(-1), ValueError, "alpha is -1"),
        (lambda: nn.Lambda("nothing"), ValueError, "'nothing' is neither"),
        (
            lambda: nn.HybridLambda(3),  # type: ignore[arg-type]
            ValueError,
            "3 is neither",
        ),
        (lambda: gluon.Parameter("w", stype="sparse"), ValueError, "expected one of default, row_sparse, csr"),
        (
            lambda: gluon.loss.L1Loss(weight="2"),  # type: ignore[arg-type]
            TypeError,
            "weight is '2', expected a number",
        ),
    ],
)
def test_refuses_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_forward_must_be_defined():
    with pytest.raises(NotImplementedError, match=r"Block must define forward\(\)"):
        gluon.Block()(DATA)
    with pytest.raises(NotImplementedError, match=r"HybridBlock must define hybrid_forward\(\)"):
        gluon.HybridBlock()(DATA)


def test_an_uninitialized_layer_is_an_error():
    with pytest.raises(RuntimeError, match=r"'lost_weight' is not initialized: call initialize\(\)"):
        nn.Dense(1, prefix="lost_")(DATA)


@pytest.mark.filterwarnings("ignore:hybridize. all children")
@pytest.mark.parametrize("hybridized", [False, True])
async def test_nothing_waits_in_a_coroutine(monkeypatch, hybridized):
    monkeypatch.setattr(mx.nd.NDArray, "asnumpy", lambda self: pytest.fail("waited"))
    model = Model()
    model.initialize(mx.init.Xavier())
    model.hybridize(hybridized)
    trainer = gluon.Trainer(model.collect_params(), "adam")
    for _ in range(2):
        with mx.autograd.record():
            loss = gluon.loss.L2Loss()(model(DATA), mx.nd.zeros((2, 2)))
        loss.backward()
        trainer.step(2)
    await loss


SUMMARY = """
--------------------------------------------------------------------------------
        Layer (type)                                Output Shape         Param #
================================================================================
               Input                                      (2, 3)               0
             Dense-1                                      (2, 4)              16
         BatchNorm-2                                      (2, 4)              16
             Dense-3                                      (2, 4)              20
             Dense-4                                      (2, 4)              20
================================================================================
Parameters in forward computation graph, duplicate included
   Total params: 72
   Trainable params: 64
   Non-trainable params: 8
Shared params in forward computation graph: 20
Unique parameters in model: 52
--------------------------------------------------------------------------------
"""


def test_summary_matches_mxnet(capsys):
    net = nn.HybridSequential()
    third = nn.Dense(4, in_units=4)
    net.add(nn.Dense(4), nn.BatchNorm(), third, nn.Dense(4, in_units=4, params=third.params))
    net.initialize()
    net.summary(DATA)
    assert capsys.readouterr().out == SUMMARY.lstrip()
    net.hybridize()
    with pytest.raises(RuntimeError, match=r"is hybridized: call hybridize\(False\) first"):
        net.summary(DATA)


class Classifier(nn.HybridBlock):
    """Nested layers; the second expects inputs of another length."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.features = nn.HybridSequential()
            self.features.add(nn.Dense(4), nn.Dense(3, in_units=7))

    def hybrid_forward(self, F, x):
        return self.features(x)


def test_an_error_that_is_raised_again_names_the_current_block():
    failed = mx.nd.ones((2, 6))
    mx.engine.push(lambda: {}["lost"], writes=[failed.storage])
    inner = nn.HybridLambda(lambda F, x: x.asnumpy())
    outer = nn.Sequential()
    outer.add(nn.Flatten(), inner)
    notes = []
    for net in (outer, inner, outer):
        with pytest.raises(KeyError) as raised:
            net(failed)
        notes.append([note for note in raised.value.__notes__ if "in block" in note])
    assert notes[0] == notes[2] and "'1' of Sequential" in notes[0][0]
    assert len(notes[1]) == 1 and repr(inner.name) in notes[1][0]


def test_an_error_names_the_path_and_the_inputs_of_the_block():
    net = Classifier()
    net.initialize()
    with pytest.raises(mx.MXNetError) as raised:
        net(mx.nd.ones((5, 6)))
    assert raised.value.__notes__[-1] == (
        "flowmx: in block 'features.1' of Classifier: Dense(7 -> 3, linear), given float32[5, 4]"
    )


class Assigned(mx.gluon.HybridBlock):
    """A block with a parameter that is missing in its ``params``."""

    def __init__(self, param):
        super().__init__()
        self.scale = param

    def hybrid_forward(self, F, x, scale):
        return F.broadcast_mul(x, scale)


def test_a_parameter_that_is_only_assigned_is_not_collected_as_in_mxnet():
    net = Assigned(mx.gluon.Parameter("scale", shape=(1, 3), init="ones"))
    with pytest.warns(UserWarning, match=r"Assigned.scale .* not in collect_params.*params.get"):
        net.initialize()
    assert list(net.collect_params()) == [] and list(net._reg_params) == ["scale"]
    with pytest.raises(RuntimeError, match=r"'scale' is not initialized.*params.get"):
        net(mx.nd.ones((2, 3)))
    net.scale.initialize()
    net.initialize()
    assert net(mx.nd.ones((2, 3))).shape == (2, 3)


def test_a_parameter_of_another_block_may_be_assigned():
    outer = mx.gluon.nn.HybridSequential()
    outer.add(mx.gluon.nn.Dense(3, in_units=3, use_bias=False))
    tied = Assigned(outer[0].weight)
    outer.add(tied)
    outer.initialize()
    assert tied(mx.nd.ones((3, 3))).shape == (3, 3)
