"""The coverage of MXNet 1.9.1's public surface: every callable name, method and operator."""

import importlib
import inspect

import pytest

import flowmx as mx
from flowmx.ops.registry.operators import registered_operators
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
    requested = [name for name in NAMES[namespace] if surface.excluded(namespace, name) is None]
    return requested, [name for name in requested if not offered(namespace, name)]


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_every_public_name_is_offered(namespace):
    requested, absent = missing(namespace)
    assert len(requested) - len(absent) >= WANTED * len(requested), f"{namespace} lacks {absent}"


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_every_offered_name_is_callable(namespace):
    root, _, inner = namespace.partition(".")
    module = importlib.import_module(f"flowmx.{'ndarray' if root == 'nd' else 'symbol'}{'.' + inner if inner else ''}")
    for name in NAMES[namespace]:
        if hasattr(module, name):
            assert callable(getattr(module, name))
            assert getattr(module, name).__doc__, name


def test_excluded_names_do_not_exist():
    assert not [
        name for name in EXCLUDED if name in registered_operators() and not registered_operators()[name].traits.hidden
    ]
    operators = {*OPERATORS, *(name for names in NAMES.values() for name in names), "contrib.uniform"}
    assert set(EXCLUDED) <= operators


@pytest.mark.parametrize(("owner", "instance"), [("NDArray", mx.nd.ones((2,))), ("Symbol", mx.sym.Variable("x"))])
def test_every_method_is_offered(owner, instance):
    assert not [name for name in NAMES[owner] if not callable(getattr(instance, name, None))]


# MXNet has a second class for these, with fewer parameters.
TWINS = {"BatchNorm_v1", "Convolution_v1", "Pooling_v1", "_grad_add"}
# Operators whose arguments MXNet documents wrongly.
MISDESCRIBED = {"_linspace", "IdentityAttachKLSparseReg", "_contrib_quantized_rnn"}
# Operators that loops, branches and partitioners create; users never call them.
LOOPS = {"_CachedOp", "_cond", "_foreach", "_while_loop"}


@rows("name", [name for name in ARGUMENTS if name in registered_operators()], of=family)
def test_arguments_have_mxnets_order(name):
    cls = registered_operators()[name]
    if name in TWINS | MISDESCRIBED | LOOPS or cls.variadic:
        return  # these take their parameters by name
    ours = list(inspect.signature(getattr(mx.nd.op, name)).parameters)
    reference = ARGUMENTS[name]
    assert ours[: len(reference)] == reference


def test_aliases_belong_to_the_same_operators():
    operators = registered_operators()
    wrong = {
        name: operators[name].name
        for name, real in OPERATORS.items()
        if name in operators
        and operators[name].name != real
        and name not in TWINS
        # Operators of mx.np are looked up on demand; in flowmx they belong to NumPy's functions.
        and not name.startswith("_np")
    }
    assert not wrong


def test_every_operator_has_a_state():
    assert not [name for name in OPERATORS if operator_page.state(name) is None]


def test_the_page_of_operators_is_current():
    assert operator_page.FILE.read_text() == operator_page.page(), "run python -m tests.operator_page"
