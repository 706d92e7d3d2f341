"""The checker of the examples in MXNet's docstrings: finding, running and comparing them."""

import sys

import pytest

from tests.docstrings.__main__ import Runner, differences
from tests.docstrings.examples import Docstring, docstrings, same

SOURCE = '''
class Layer:
    """A layer.

    >>> x = mx.nd.ones((2,))
    >>> for each in range(2):
    ...     print(each)

    >>>x + 1
    [2. 2.]
    >>> y = [1,
             2]
    >>> if y:
    >>>     print y
    >>> # the end
    """

    def sample(self):
        """Draw.
            >>> mx.nd.random.uniform()
        """

def nothing():
    """No example: >> x."""
'''


def test_examples_are_found(tmp_path):
    package = tmp_path / "python" / "mxnet" / "numpy"
    package.mkdir(parents=True)
    (package / "layers.py").write_text(SOURCE)
    (package / "link.py").symlink_to("missing.py")
    assert list(docstrings(tmp_path)) == [
        Docstring("numpy/layers.py:Layer", True, False,
                  ["x = mx.nd.ones((2,))", "for each in range(2):\n    print(each)", "x + 1",
                   "y = [1,\n        2]", "if y:\n    print(y)"]),
        Docstring("numpy/layers.py:Layer.sample", True, True, ["mx.nd.random.uniform()"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[1.  2.]\n", "[1. 2.]"), ("array([1.0000001])", "array([1.])"), ("np.float64(2.5)", "2.5"),
        ("<class 'flowmx.nd.NDArray'>", "<class 'mxnet.ndarray.ndarray.NDArray'>"), ("[nan -inf]", "[nan -inf]"),
        ("array([1, ..., 7], shape=(7,))", "array([1, ..., 7])"), ("(array(1.), array(2))", "[array(1.), array(2)]"),
        ("SlogdetResult(sign=array(1.), logabsdet=array(2.))", "(array(1.), array(2.))"), ("at 0x7f1a", "at 0x55"),
    ],
)  # fmt: skip
def test_equal_outputs(one, other):
    assert same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[1. 2.]", "[1. 2.1]"),
        ("[1. 2.]", "[1. 2. 3.]"),
        ("[1. 25.]", "[1.2 5.]"),
        ("nan", "1"),
        ("fc1", "fc2"),
        ("array(1)", "array(1, dtype=int8)"),
    ],
)
def test_outputs_that_differ(one, other):
    assert not same(one, other)


def test_random_numbers_are_compared_by_shape():
    assert same("[0.1 0.2]\n<NDArray 2 @cpu(0)>", "[0.3 -0.2]\n<NDArray 2 @cpu(0)>", with_numbers=False)
    assert not same("[0.1]\n<NDArray 1 @cpu(0)>", "0.3\n<NDArray  @cpu(0)>", with_numbers=False)


def test_examples_are_run_and_compared():
    runner = Runner(sys.executable, "flowmx")
    lines = ["x = mx.nd.array([1, 2])", "x + 1", "missing", "print(type(np.ones(1)))", "import os; os._exit(3)"]
    died = runner.run(Docstring("a", True, False, lines))
    assert {each[1] for each in died} == {"Died"}
    output = runner.run(Docstring("b", False, False, lines[:-1]))
    runner.end()
    assert output[0] == ["printed", "x: \n[1. 2.]\n<NDArray 2 @cpu(0)>\n"]
    assert output[1] == ["printed", "\n[2. 3.]\n<NDArray 2 @cpu(0)>\n"]
    assert output[2][:2] == ["raised", "NameError Exception BaseException"]
    assert "numpy.ndarray" in output[3][1]
    theirs = [output[0], ["printed", "[2. 4.]"], ["printed", ""], ["raised", "ValueError", ""]]
    assert [line for line, *_ in differences(Docstring("b", False, False, lines[:-1]), output, theirs)] == lines[1:3]
