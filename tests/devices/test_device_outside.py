"""A device type that is registered from outside flowmx."""

import pickle

import numpy as np
import pytest

import flowmx as mx
from flowmx import devices
from flowmx.devices import CPUDevice


class Npu(CPUDevice):
    """A CPU under another name, which counts its allocations."""

    allocations = 0

    def allocate(self, shape, dtype):
        Npu.allocations += 1
        return super().allocate(shape, dtype)


devices.register_device_type("npu", Npu)
CONTEXT = mx.Context("npu", 0)


def test_arrays_are_computed_and_copied():
    before = Npu.allocations
    array = mx.nd.ones((2, 2), ctx=CONTEXT)
    assert (array + 1).context == CONTEXT
    np.testing.assert_array_equal(mx.nd.dot(array, array).asnumpy(), np.full((2, 2), 2))
    assert array.as_in_context(mx.cpu()).context == mx.cpu()
    assert Npu.allocations > before
    assert repr(CONTEXT) == "npu(0)"
    assert mx.Context.devtype2str[CONTEXT.device_typeid] == "npu"
    assert pickle.loads(pickle.dumps(CONTEXT)) is CONTEXT


@pytest.mark.parametrize("hybridize", [False, True])
def test_a_network_trains_there(hybridize):
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Conv2D(2, 3, in_channels=1), mx.gluon.nn.BatchNorm(in_channels=2), mx.gluon.nn.Dense(1))
    net.initialize(ctx=CONTEXT)
    if hybridize:
        net.hybridize()
    trainer = mx.gluon.Trainer(net.collect_params(), "adam")
    for _ in range(2):
        with mx.autograd.record():
            loss = net(mx.nd.ones((2, 1, 5, 5), ctx=CONTEXT)).sum()
        loss.backward()
        trainer.step(2)
    assert loss.context == CONTEXT
    assert np.isfinite(loss.asscalar())


def test_another_registration_replaces_the_factory_for_unused_devices():
    devices.register_device_type("npu", Npu)
    assert mx.nd.ones(2, ctx=mx.Context("npu", 1)).asnumpy().tolist() == [1, 1]


@pytest.mark.parametrize("name", ["cpu", "gpu", "my npu", "", 3])
def test_names_must_be_new_identifiers(name):
    with pytest.raises(ValueError, match="expected an identifier other than cpu, cpu_pinned"):
        devices.register_device_type(name, Npu)


def test_the_factory_must_be_callable():
    with pytest.raises(TypeError, match="make is str, expected a function that takes a context and returns a device"):
        devices.register_device_type("tpu", "Npu")
    with pytest.raises(ValueError, match=r"device type is 'tpu', expected one of .*'npu'"):
        mx.Context("tpu")
