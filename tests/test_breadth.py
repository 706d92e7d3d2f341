"""The coverage of MXNet 1.9.1's public surface: every callable name, method and operator."""

import importlib
import inspect

import pytest

import flowmx as mx
from flowmx.ops.registry.operators import registered
from tests import operator_page, surface
from tests.rows import family, rows
from tests.surface import ARGUMENTS, EXCLUDED, NAMES, OPERATORS

WANTED = 0.97
NAMESPACES = [name for name in NAMES if name not in ("NDArray", "Symbol")]


def offered(namespace, name):
    root, _, inner = namespace.partition(".")
    module = getattr(mx, root)
    return hasattr(getattr(module, inner) if inner else module, name)


def missing(namespace):
    wanted = [name for name in NAMES[namespace] if surface.excluded(namespace, name) is None]
    return wanted, [name for name in wanted if not offered(namespace, name)]


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_every_public_name_is_offered(namespace):
    wanted, absent = missing(namespace)
    assert len(wanted) - len(absent) >= WANTED * len(wanted), f"{namespace} lacks {absent}"


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_what_is_offered_can_be_called(namespace):
    root, _, inner = namespace.partition(".")
    module = importlib.import_module(f"flowmx.{'ndarray' if root == 'nd' else 'symbol'}{'.' + inner if inner else ''}")
    for name in NAMES[namespace]:
        if hasattr(module, name):
            assert callable(getattr(module, name))
            assert getattr(module, name).__doc__, name


def test_what_is_excluded_is_not_there():
    assert not [name for name in EXCLUDED if name in registered() and not registered()[name].traits.hidden]
    known = {*OPERATORS, *(name for names in NAMES.values() for name in names), "contrib.uniform"}
    assert set(EXCLUDED) <= known


@pytest.mark.parametrize(("owner", "made"), [("NDArray", mx.nd.ones((2,))), ("Symbol", mx.sym.Variable("x"))])
def test_every_method_is_offered(owner, made):
    assert not [name for name in NAMES[owner] if not callable(getattr(made, name, None))]


# What MXNet keeps a second class for, with fewer parameters.
TWINS = {"BatchNorm_v1", "Convolution_v1", "Pooling_v1", "_grad_add"}
# Operators whose arguments MXNet itself describes wrongly.
MISDESCRIBED = {"_linspace", "IdentityAttachKLSparseReg", "_contrib_quantized_rnn"}
# What the functions for loops and branches, and partitioners, make, never a person.
LOOPS = {"_CachedOp", "_cond", "_foreach", "_while_loop"}


@rows("name", [name for name in ARGUMENTS if name in registered()], of=family)
def test_the_arguments_come_in_mxnets_order(name):
    cls = registered()[name]
    if name in TWINS | MISDESCRIBED | LOOPS or cls.variadic:
        return  # these take their parameters by name
    ours = list(inspect.signature(getattr(mx.nd.op, name)).parameters)
    theirs = ARGUMENTS[name]
    assert ours[: len(theirs)] == theirs


def test_aliases_belong_to_the_same_operators():
    known = registered()
    wrong = {
        name: known[name].name
        for name, real in OPERATORS.items()
        if name in known and known[name].name != real and name not in TWINS
    }
    assert not wrong


def test_every_operator_has_a_state():
    assert not [name for name in OPERATORS if operator_page.state(name) is None]


def test_the_page_of_operators_is_current():
    assert operator_page.FILE.read_text() == operator_page.page(), "run python -m tests.operator_page"
