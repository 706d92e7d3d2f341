"""Every function and class of MXNet 1.9.1's modules exists, or is listed with a reason."""

from tests import modules
from tests.modules import COMING, EXCLUDED, NAMES
from tests.rows import rows


def test_missing_names_have_a_reason():
    assert not modules.unexplained(modules.missing())


def test_names_with_a_reason_are_missing():
    # MXNet's attributes of instances are not attributes of the classes.
    assert not [name for name in EXCLUDED if modules.find(name.replace(":", ".")) is not None]


@rows("name", sorted({*EXCLUDED, *COMING}), of=lambda name: name.partition(".")[0])
def test_names_with_a_reason_exist_in_mxnet(name):
    owner, _, attribute = name.partition(":")
    if attribute:
        module, _, cls = owner.rpartition(".")
        assert attribute in NAMES[f"{module}:{cls}"]
    else:
        module, _, member = name.rpartition(".")
        assert name in NAMES or member in NAMES[module]


def test_the_check_finds_missing_names():
    invented = ["io.Invented", "io", "io.NDArrayIter:invented"]
    assert modules.unexplained(iter(invented)) == invented
    assert modules.unexplained(iter(["quantization", "notebook.callback"])) == ["quantization"]
    assert len(list(modules.missing())) > 20
