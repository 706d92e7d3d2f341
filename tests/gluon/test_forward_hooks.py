"""Forward hooks of blocks, also of blocks inside a hybridized one."""

import copy
import pickle

import pytest

import flowmx as mx
from flowmx.gluon import hook_watch, nn

X = mx.nd.ones((2, 3))
LATE = r"hooks of '.*dense.*' were registered after '.*' was compiled.*runs layer by layer.*register_op_hook"
STATIC = {"static_alloc": True, "static_shape": True}


@pytest.fixture(autouse=True)
def forget_lines():
    """Warn again at lines that warned before."""
    hook_watch._warned_lines.clear()


def network():
    inner = nn.HybridSequential()
    inner.add(nn.Dense(2, in_units=3), nn.Dense(2, in_units=2))
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=3), inner)
    net.initialize(mx.init.One())
    return net


def record(block, log):
    """Register both hooks of a block; return their handles."""
    before = block.register_forward_pre_hook(lambda owner, inputs: log.append(("before", owner, type(inputs[0]))))
    after = block.register_forward_hook(lambda owner, inputs, output: log.append(("after", owner, type(output))))
    return before, after


def expected(block, kind, calls=1):
    return [("before", block, kind), ("after", block, kind)] * calls


@pytest.mark.parametrize("flags", [{}, STATIC])
@pytest.mark.parametrize("is_inner", [False, True])
def test_hooks_inside_a_compiled_block_are_called_with_arrays(flags, is_inner):
    """In MXNet 1.9.1 they are never called, without a word."""
    net, log = network(), []
    net.hybridize(**flags)
    right = net(X).asnumpy()
    block = net[1][0] if is_inner else net[0]
    handles = record(block, log)
    with pytest.warns(UserWarning, match=LATE):
        assert (net(X).asnumpy() == right).all()
    assert log == expected(block, mx.nd.NDArray)
    assert (net(X).asnumpy() == right).all()
    assert log == expected(block, mx.nd.NDArray, 2)
    for handle in handles:
        handle.detach()
    compiled = net._compiled
    assert (net(X).asnumpy() == right).all()
    assert len(log) == 4
    assert net._compiled is compiled and compiled  # the graph is used again


def test_gradients_with_late_hooks():
    net = network()
    net.hybridize()
    net(X)
    shapes = []
    net[1][0].register_forward_hook(lambda block, inputs, output: shapes.append(output.asnumpy().shape))
    with pytest.warns(UserWarning, match=LATE), mx.autograd.record():
        loss = net(X).sum()
    loss.backward()
    assert shapes == [(2, 2)]
    assert net[0].weight.grad().asnumpy().tolist() == [[8.0] * 3] * 3


def test_hooks_before_the_first_call_are_called_with_symbols_once_as_in_mxnet(recwarn):
    net, log = network(), []
    net.hybridize()
    record(net[0], log)
    for _ in range(3):
        net(X)
    assert log == expected(net[0], mx.sym.Symbol)
    assert not recwarn.list


@pytest.mark.parametrize("flags", [{}, STATIC])
def test_hooks_of_the_compiled_block_itself_keep_its_graph(flags, recwarn):
    net, log = network(), []
    net.hybridize(**flags)
    net(X)
    record(net, log)
    net(X)
    net(X)
    assert log == expected(net, mx.nd.NDArray, 2)
    assert not recwarn.list


def test_hybridizing_again_calls_the_hooks_with_symbols():
    net, log = network(), []
    net.hybridize()
    net(X)
    record(net[0], log)
    with pytest.warns(UserWarning, match="has hooks, which are not called"):
        net.hybridize()
    net(X)
    net(X)
    assert log == expected(net[0], mx.sym.Symbol)


def test_other_blocks_and_copies_are_not_affected(recwarn):
    net, other, log = network(), network(), []
    for block in (net, other):
        block.hybridize()
        block(X)
    record(other[0], log)
    net(X)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert (twin(X).asnumpy() == net(X).asnumpy()).all()
    assert not log and not recwarn.list


def test_a_child_that_was_compiled_alone_notices_its_own_hooks():
    net, log = network(), []
    net[1].hybridize()
    net(X)
    record(net[1][0], log)
    with pytest.warns(UserWarning, match=LATE):
        net(X)
    assert log == expected(net[1][0], mx.nd.NDArray)


def test_hooks_without_a_kept_handle_do_not_replace_each_other():
    """They were kept under the handle's id, which a later handle may have, too."""
    net, log = network(), []
    for number in range(20):
        net.register_forward_hook(lambda *_, number=number: log.append(number))
    net(X)
    assert log == list(range(20))


def test_a_function_registered_twice_is_called_once_as_in_mxnet():
    net, log = network(), []

    def hook(*_):
        log.append(1)

    first, second = net.register_forward_hook(hook), net.register_forward_hook(hook)
    net(X)
    assert log == [1]
    first.detach()
    second.detach()
    net(X)
    assert log == [1]
