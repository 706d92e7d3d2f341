"""Optimizer states are exchanged between flowmx and MXNet in both directions; no code of a pickle runs."""

import os
import pickle
import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowmx as mx
from benchmarks.turns import python_of
from flowmx.serialization import plain_pickle
from tests import peers
from tests.fixtures import record_training as recorded

MXNET = python_of("mxnet")
STATES = dict(np.load(recorded.FOLDER / "states.npz"))
HISTORIES = dict(np.load(recorded.FOLDER / "optimizers.npz"))


def weights_after(case, steps):
    only = recorded.OPTIMIZERS[case][1].get("only", recorded.NAMES)
    return {index: HISTORIES[f"{case}/{index}"][recorded.KEPT.index(steps)] for index in only}


def resume(case, weights, states):
    """Continue with an updater whose optimizer comes from the states alone."""
    return recorded.go_on(mx, mx.optimizer.get_updater(mx.optimizer.SGD()), case, weights, states)


def assert_close(actual, expected):
    for index, array in actual.items():
        tolerance = 2e-6 if array.dtype == np.float32 else 1e-3
        np.testing.assert_allclose(
            array, expected[index], rtol=tolerance, atol=tolerance * np.abs(expected[index]).max()
        )


@pytest.mark.parametrize(("case", "version"), recorded.SAVED)
def test_training_resumes_from_mxnet_s_states(case, version):
    states = STATES[f"{case}/{version}"].tobytes()
    weights = resume(case, weights_after(case, recorded.SAVED_AT), states)
    assert_close(weights, weights_after(case, recorded.STEPS))


def test_states_without_an_optimizer_keep_the_current_one():
    optimizer = mx.optimizer.Adam(beta1=0.8)
    update = mx.optimizer.get_updater(optimizer)
    update.set_states(STATES["without optimizer"].tobytes())
    ours = recorded.saved_states(mx, "adam clip").states
    assert update.optimizer is optimizer
    for index, arrays in update.states.items():
        for actual, expected in zip(arrays, ours[index], strict=True):
            np.testing.assert_allclose(actual.asnumpy(), expected.asnumpy(), rtol=2e-5, atol=1e-8)


@pytest.mark.parametrize("case", recorded.OPTIMIZERS)
def test_states_written_for_mxnet_can_be_read(case):
    update = recorded.saved_states(mx, case)
    weights = weights_after(case, recorded.SAVED_AT)
    one, other = (resume(case, weights, update.get_states(True, format)) for format in ("mxnet", "flowmx"))
    for index, array in one.items():
        np.testing.assert_array_equal(array, other[index])


GO_ON = """
import sys
import numpy as np
import mxnet as mx, mxnet.optimizer.contrib
from tests.fixtures import record_training as recorded
given, found = np.load(sys.argv[1]), {}
for case in recorded.OPTIMIZERS:
    weights = {int(index): given[f"{case}/{index}"] for index in "012" if f"{case}/{index}" in given}
    update = mx.optimizer.get_updater(recorded.make_optimizer(mx, case))
    for index, array in recorded.go_on(mx, update, case, weights, given[case].tobytes()).items():
        found[f"{case}/{index}"] = array
np.savez(sys.argv[2], **found)
"""


@pytest.mark.skipif(MXNET is None, reason="no MXNet 1.9.1 environment under PEERS")
def test_mxnet_resumes_from_flowmx_s_states(tmp_path):
    arrays = {}
    for case in recorded.OPTIMIZERS:
        arrays[case] = np.frombuffer(recorded.saved_states(mx, case).get_states(True, "mxnet"), np.uint8)
        arrays |= {f"{case}/{index}": array for index, array in weights_after(case, recorded.SAVED_AT).items()}
    np.savez(tmp_path / "given.npz", **arrays)
    command = [str(MXNET), "-c", GO_ON, str(tmp_path / "given.npz"), str(tmp_path / "found.npz")]
    subprocess.run(command, check=True, capture_output=True, timeout=100, env=peers.environment(PYTHONPATH="."))
    weights = dict(np.load(tmp_path / "found.npz"))
    for case in recorded.OPTIMIZERS:
        expected = weights_after(case, recorded.STEPS)
        assert_close({index: weights[f"{case}/{index}"] for index in expected}, expected)


def test_there_are_two_formats():
    with pytest.raises(ValueError, match="format is 'onnx', expected 'flowmx' or 'mxnet'"):
        mx.optimizer.get_updater(mx.optimizer.SGD()).get_states(format="onnx")


def test_refuses_to_write_values_that_mxnet_does_not_support():
    update = mx.optimizer.get_updater(mx.optimizer.SGD())
    update.states[0] = {1, 2}
    with pytest.raises(TypeError, match="unsupported value"):
        update.get_states(format="mxnet")


class Evil:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def load(data):
    mx.optimizer.get_updater(mx.optimizer.SGD()).set_states(data)


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("wrap", [lambda evil: {0: evil}, lambda evil: ({}, evil), lambda evil: evil])
def test_no_code_is_run(wrap, version, tmp_path):
    with pytest.raises(mx.optimizer.StatesFormatError, match="expected"):
        load(pickle.dumps(wrap(Evil(tmp_path / "made")), version))
    assert not (tmp_path / "made").exists()


def laughs():
    """Return a value whose pickle has a few hundred bytes, and which is larger than any memory when expanded."""
    value = [1.5]
    for _ in range(60):
        value = [value, value]
    return {0: value}


def endless():
    value = []
    value.append(value)
    return {0: value}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps([1]), "holds a list, expected a dict"),
        (pickle.dumps(laughs()), "repeats its parts more often"),
        (pickle.dumps(endless()), "repeats its parts more often|nested deeper"),
        (pickle.dumps({0: np.ones(3)}), "holds a numpy"),
        (pickle.dumps({0: bytearray}), "holds the name builtins.bytearray, expected an MXNet NDArray"),
        (pickle.dumps({0: (None, [mx.nd.NDArray])}), "NDArray, expected an MXNet NDArray"),
        (b"\x80\x04N", "start with"),
        (b"\x80\x04\x93.", "a pickle that MXNet did not write"),
        (b"(i__main__\nEvil\n.", "unsupported pickle opcode INST"),
        (b"\x80\x02}r\xff\xff\xff\x7f.", None),
    ],
)
def test_refuses_damaged_and_hostile_pickles(data, message):
    if message is None:
        load(data)  # a memo index of 2 · 10⁹
        return
    with pytest.raises(mx.optimizer.StatesFormatError, match=message):
        load(data)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(STATES)), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=8))
def test_a_file_with_wrong_bytes_is_read_or_refused(name, changes):
    data = bytearray(STATES[name].tobytes())
    for place, byte in changes:
        data[int(place * (len(data) - 1))] = byte
    try:
        load(bytes(data))
    except ValueError:
        pass  # StatesFormatError is one, and so is the name of an optimizer that does not exist


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    )
)
@settings(deadline=None)
def test_plain_data_survives_a_round_trip(value):
    assert plain_pickle.loads(plain_pickle.dumps(value)) == value
    as_python = pickle.loads(plain_pickle.dumps(value))
    assert as_python == value


@pytest.mark.parametrize(
    "content", [b"h\x05.", b"c__builtin__\nbytearray\n(K\x01K\x02K\x03tR."], ids=["memory", "call"]
)
def test_damaged_pickles_are_refused(content):
    with pytest.raises(ValueError, match="pickle"):
        plain_pickle.loads(content)


DOUBLED = b")" + b"q\x00h\x00\x86" * 100
"""A tuple of 2**100 tuples, which cannot be hashed, compared or printed in finite time."""


@pytest.mark.parametrize(
    "content",
    [
        b"}" + DOUBLED + b"Ns.",
        b"}K\x00" + DOUBLED + b"s.",
        b"(}" + DOUBLED + b"t.",
        b"(}cmxnet.optimizer\nSGD\n" + DOUBLED + b"Rt.",
        b"(}cmxnet.optimizer\nSGD\n)\x81" + DOUBLED + b"bt.",
        b"(}cmxnet.optimizer\nSGD\n)\x81}X\x02\0\0\0lr" + DOUBLED + b"sbt.",
        b"(}cmxnet.optimizer.optimizer\nSGD\n)\x81}X\x02\0\0\0lr" + DOUBLED + b"sbt.",
        DOUBLED + b".",
        b"c_codecs\nencode\n" + DOUBLED + b"R.",
        b"cnumpy.core.multiarray\nscalar\n" + DOUBLED + b"R.",
    ],
)
def test_values_of_exponential_size_are_never_traversed(content):
    with pytest.raises((mx.optimizer.StatesFormatError, ValueError)):
        load(b"\x80\x02" + content)
