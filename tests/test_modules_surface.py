"""Every function and class of MXNet 1.9.1's modules is here, or there is a reason."""

from tests import modules
from tests.modules import COMING, EXCLUDED, NAMES
from tests.rows import rows


def test_what_is_missing_has_a_reason():
    assert not modules.unexplained(modules.missing())


def test_what_has_a_reason_is_missing():
    # What stands there as an attribute of objects, classes do not have.
    assert not [name for name in EXCLUDED if modules.find(name.replace(":", ".")) is not None]


@rows("name", sorted({*EXCLUDED, *COMING}), of=lambda name: name.partition(".")[0])
def test_what_has_a_reason_is_mxnets(name):
    owner, _, attribute = name.partition(":")
    if attribute:
        module, _, cls = owner.rpartition(".")
        assert attribute in NAMES[f"{module}:{cls}"]
    else:
        module, _, member = name.rpartition(".")
        assert name in NAMES or member in NAMES[module]


def test_the_check_sees_what_is_missing():
    invented = ["io.Invented", "io", "io.NDArrayIter:invented"]
    assert modules.unexplained(iter(invented)) == invented
    assert modules.unexplained(iter(["quantization", "notebook.callback"])) == ["quantization"]
    assert len(list(modules.missing())) > 20
