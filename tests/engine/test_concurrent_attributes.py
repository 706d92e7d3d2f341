"""Setting attributes of an object from several threads is safe on CPython 3.11."""

import gc
import subprocess
import sys

import pytest

import flowmx as mx
from flowmx.engine.concurrent_attributes import DeclaredAttributes
from flowmx.engine.scheduler import Operation, Variable
from flowmx.ndarray.core import Storage

pytestmark = pytest.mark.usefixtures("new_python")

RACE = """
import gc, sys, threading, time
from flowmx.engine import Handle
from flowmx.engine.scheduler import Operation, Variable
from flowmx.ndarray.core import Storage

class Plain:
    a = b = c = d = None
    def __init__(self):
        self.x = self.y = 1

ARGUMENTS = {Plain: 0, Variable: 0, Storage: 3, Operation: 6, Handle: 6}
NAMES = {Plain: "abcd", Variable: ["version", "readers", "failure", "deleted"],
         Storage: ["array", "readers", "failure", "shared"], Operation: ["waiters", "failure", "result", "token"]}
kind = {kind}
names = NAMES.get(kind) or NAMES[Operation]
def make():
    return kind(*[None] * ARGUMENTS[kind])
def give(thing, names):
    for name in names:
        setattr(thing, name, [1])
early = [make() for _ in range(100)]  # by now a class has no room for more names than these had, and one more
give(make(), names[:1])
gc.callbacks.append(lambda *_: time.sleep(0))  # another thread's turn, in the midst of a collection
gc.set_threshold(3)
sys.setswitchinterval(1e-5)
current = [make()]
done = False
def other():
    while not done:
        give(current[0], names[2:])
thread = threading.Thread(target=other)
thread.start()
things = []
for number in range(3000):
    current[0] = thing = make()
    things.append(thing)
    give(thing, names[:2])
    if len(things) > 1000:
        things.clear()
        dictionaries = [{} for _ in range(90)]  # so that new ones are made, not taken from those at hand
done = True
thread.join()
"""


def race(kind):
    script = RACE.replace("{kind}", kind)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100).returncode


@pytest.mark.parametrize("kind", ["Variable", "Storage", "Operation", "Handle"])
def test_two_threads_give_an_object_attributes_while_the_collector_runs(kind):
    assert race(kind) == 0


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="CPython 3.11 alone has the fault")
def test_plain_classes_have_the_race():
    assert any(race("Plain") != 0 for _ in range(5))


def has_dictionary(thing):
    """Return whether an object's attributes are in a dictionary (reading ``__dict__`` would create one)."""
    values = {id(getattr(thing, name, None)) for name in ("readers", "blockers", "dependents", "waiters")}
    return any(type(each) is dict and id(each) not in values for each in gc.get_referents(thing))


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="about CPython's objects")
def test_attributes_of_arrays_and_operations_create_no_dictionary():
    early = [mx.nd.ones((2,)) for _ in range(100)]
    x = mx.nd.ones((2, 3))
    x.attach_grad()
    with mx.autograd.record():
        y = (x * 2)[0:1]
    y.backward()
    handle = mx.engine.push(lambda: 3, reads=[x], writes=[early[0]])
    mx.engine.delete_variable(early[1].variable)
    for name in ("failure", "marks", "shared"):
        setattr(y.variable, name, None)
    for name in ("waiters", "token", "dependents"):
        setattr(handle, name, None)
    for each in (x, y, x.variable, y.variable, x.grad, early[1].variable, handle):
        assert not has_dictionary(each), each
    assert handle.wait() == 3


def test_attributes_of_user_classes_create_no_dictionary():
    class File(Variable):
        path = ""
        opened: bool

    files = [File() for _ in range(100)]
    files[-1].path, files[-1].opened, files[-1].failure = "a", True, None
    assert not has_dictionary(files[-1])
    assert issubclass(Storage, DeclaredAttributes) and issubclass(Operation, DeclaredAttributes)
