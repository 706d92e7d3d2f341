"""The oracle: memory, the handles on it, and their derivatives, with NumPy only.

Every memory has values. Their derivatives are stored in *lines*: the handles of a line read the same derivatives, and a
write while recording changes them. `detach()`, `attach_grad()`, and views of recorded arrays created outside
`record()` start another line on the same memory.
"""

import numpy as np

from tests.tape.jets import DIRECTIONS, Jet

LARGEST = 30.0
"""The largest values and derivatives; beyond, float32 loses too much."""


class Invalid(Exception):
    """An invalid statement: shapes that do not fit, a kink, numbers that are too large."""


class Refused(Exception):
    """A case for which flowmx must raise an AutogradError, with a text that this matches."""


class Leaf:
    """A variable: the directions in which its elements vary, and its gradient buffer."""

    def __init__(self, start, shape, grad, request):
        self.start, self.shape, self.grad, self.request = start, shape, grad, request
        self.handle = None
        self.size = int(np.prod(shape))


class Line:
    """The record of a memory, shared by some of the handles on it."""

    def __init__(self, size, kind="own"):
        self.kind = kind
        self.first = self.second = None
        self.reach, self.order = None, 2
        self.is_lost = False
        self.size = size

    def read(self, at):
        first = None if self.first is None else self.first[:, at]
        second = None if self.second is None else self.second[:, :, at]
        return first, second

    def write(self, at, jet, is_all):
        """Store the derivatives of new content."""
        for name, derivative, lead in (("first", jet.first, 1), ("second", jet.second, 2)):
            old = None if is_all else getattr(self, name)
            if derivative is None and old is None:
                setattr(self, name, None)
                continue
            new = np.zeros((DIRECTIONS,) * lead + (self.size,)) if old is None else old.copy()
            new[..., at] = 0 if derivative is None else derivative
            setattr(self, name, new)
        if is_all:
            self.reach, self.order, self.is_lost = jet.reach, jet.order, False
        elif jet.reach is not None or self.reach is not None:
            self.reach = (self.reach or frozenset()) | (jet.reach or frozenset())
            self.order = min(self.order, jet.order)


class Memory:
    def __init__(self, value, dtype="float32", device="cpu(0)"):
        self.value = np.array(value, np.float64).reshape(-1)
        self.dtype, self.device = dtype, device
        self.lines, self.leaves = [], []
        self.is_used = False

    def line(self, kind="own"):
        line = Line(self.value.size, kind)
        self.lines.append(line)
        return line


class Handle:
    def __init__(self, memory, at, line, leaf=None):
        self.memory, self.at, self.line, self.leaf = memory, at, line, leaf

    @property
    def shape(self):
        return self.at.shape

    @property
    def value(self):
        return self.memory.value[self.at]

    @property
    def covers(self):
        return self.at.size == self.memory.value.size


class World:
    """The state of a program that is interpreted.

    Attributes:
        handles: by name.
        lists: what `autograd.grad` returned has one name for each array.
        seen: the values that the program read: a label and an array each.
        excuses: kinds of errors that flowmx may raise, though it need not, with the statement from which on it may.
        at: the number of the statement.
        refusal: the number of a statement that flowmx must refuse, and a part of the error's text, or None if there is
            none.
    """

    def __init__(self):
        self.handles = {}
        self.scopes = []
        self.seen = []
        self.excuses = {}
        self.at = 0
        self.refusal = None
        self.is_blind = False
        self.directions = 0

    @property
    def recording(self):
        for each in reversed(self.scopes):
            if each in ("record", "pause"):
                return each == "record"
        return False

    def refuse(self, reason):
        """Record that flowmx must raise."""
        if not self.is_blind:
            raise Refused(reason)

    def excuse(self, reason):
        """Allow a kind of errors from here on."""
        self.excuses.setdefault(reason, self.at)

    # -- handles ---------------------------------------------------------------------------------------

    def new(self, jet, dtype="float32", device="cpu(0)"):
        """Create a handle on new memory."""
        check(jet)
        value = np.trunc(jet.value) if dtype == "int32" else jet.value
        memory = Memory(value, dtype, device)
        handle = Handle(memory, np.arange(value.size).reshape(value.shape), memory.line())
        handle.line.write(handle.at, jet, True)
        memory.is_used = self.recording
        return handle

    def read(self, name):
        """Return the content of a handle, as an operator reads it."""
        handle = self.handles[name]
        jet = Jet(handle.value)
        if self.recording:
            handle.memory.is_used = True
            jet = self.past(handle)
        return jet

    def past(self, handle):
        line = handle.line
        if line.is_lost:
            self.refuse("was written at")
        return Jet(handle.value, *line.read(handle.at), line.order, line.reach)

    def view(self, handle, at):
        line = handle.line
        if line.reach is not None and not self.recording:
            line = handle.memory.line("cut")
        return Handle(handle.memory, at, line)

    def detach(self, handle):
        return Handle(handle.memory, handle.at, handle.memory.line("detached"))

    def mark(self, handle, request):
        memory = handle.memory
        if request == "null":
            handle.leaf, handle.line = None, memory.line("cut")
            return
        count = handle.at.size
        if self.directions + count > DIRECTIONS:
            raise Invalid("no directions are left")
        grad = Memory(np.zeros(handle.at.size), memory.dtype, memory.device)
        leaf = Leaf(self.directions, handle.shape, grad, request)
        self.directions += count
        line = memory.line("variable")
        line.reach = frozenset([leaf])
        line.first = np.zeros((DIRECTIONS, memory.value.size))
        line.first[leaf.start + np.arange(count), handle.at.reshape(-1)] = 1
        handle.leaf, handle.line = leaf, line
        memory.leaves.append(leaf)

    # -- writing ---------------------------------------------------------------------------------------

    def write(self, handle, jet, keeps=False):
        """Overwrite a handle with a content of its shape.

        Args:
            handle: what is written through.
            jet: the content.
            keeps: whether it counts as computed from the old content too, as with index arrays.
        """
        memory, line = handle.memory, handle.line
        check(jet)
        if jet.shape != handle.shape:
            raise Invalid("shapes")
        if self.recording:
            if line.kind == "variable":
                self.refuse("cannot be changed in place while")
            if jet.reach is not None and memory.leaves:
                if any(each.leaf in memory.leaves for each in self.handles.values() if each.leaf):
                    self.refuse("shares its memory with a variable")
                self.excuse("shares its memory with a variable")
        if memory.is_used:
            self.excuse("was changed in place")
        value = np.trunc(jet.value) if memory.dtype == "int32" else jet.value
        memory.value[handle.at] = value
        if not self.recording:
            return
        memory.is_used = True
        self.record(handle, jet, keeps)

    def record(self, handle, jet, keeps=False):
        """Record a write in all lines of a memory."""
        memory, line = handle.memory, handle.line
        line.write(handle.at, jet, handle.covers and not keeps)
        traced = jet.reach is not None or (keeps and line.reach is not None)
        if line.kind == "detached" and not traced:
            return
        for other in memory.lines:
            concerned = other.reach is not None or traced
            if concerned and other is not line and other.kind not in ("detached", "variable"):
                other.is_lost = True

    # -- differentiating -------------------------------------------------------------------------------

    def _heads(self, names, head_grads, create_graph=False):
        """Return jets of the heads, and of their head gradients."""
        pairs = []
        for name, head_grad in zip(names, head_grads, strict=True):
            handle = self.handles[name]
            if handle.line.is_lost:
                self.refuse("was written at")
            if handle.line.reach is None:
                self.refuse("was not computed inside")
            head = self.past(handle)
            head.reach = head.reach or frozenset()
            if head.order < 1:
                raise Invalid("order")
            weight = Jet(np.ones(head.shape))
            if head_grad is not None:
                weight = self.past(self.handles[head_grad]) if create_graph else Jet(self.handles[head_grad].value)
                self.handles[head_grad].memory.is_used |= create_graph
                if weight.shape != head.shape:
                    raise Invalid("shapes")
            pairs.append((head, weight))
        return pairs

    def backward(self, names, head_grads, retain):
        pairs = self._heads(names, head_grads)
        leaves = frozenset().union(*[head.reach for head, _ in pairs])
        gradients = {leaf: gradient(pairs, leaf) for leaf in leaves}
        for each in gradients.values():
            check(each)
        for leaf, each in gradients.items():
            flat = each.value.reshape(-1)
            leaf.grad.value[:] = leaf.grad.value + flat if leaf.request == "add" else flat
            if leaf.grad.is_used:
                self.excuse("was changed in place")
            if leaf.request == "write" and leaf.handle is not None and leaf.handle.leaf is None:
                self.record(leaf.handle, Jet(each.value))
        if not retain:
            self.excuse("was freed by")

    def grad(self, names, variables, head_grads, retain, create_graph):
        leaves = [self.handles[each].leaf for each in variables]
        if None in leaves:
            raise Invalid("no variable")
        pairs = self._heads(names, [None] * len(names))
        reach = frozenset().union(*[head.reach for head, _ in pairs])
        if any(leaf not in reach for leaf in leaves):
            if create_graph and any(head_grad and self.handles[head_grad].line.is_lost for head_grad in head_grads):
                self.excuse("was written at")
            self.refuse("do not depend on")
        pairs = self._heads(names, head_grads, create_graph)
        if not (create_graph if retain is None else retain):
            self.excuse("was freed by")
        gradients = []
        for leaf in leaves:
            each = gradient(pairs, leaf)
            if create_graph:
                smooth = [(head, w) for head, w in pairs if head.first is not None and leaf in head.reach]
                weights = [weight.reach for _, weight in smooth if weight.reach is not None]
                each.reach = reach.union(*weights)
            else:
                each = each.constant()
            gradients.append(self.new(each, leaf.grad.dtype, leaf.grad.device))
            gradients[-1].memory.is_used = create_graph
        return gradients


def gradient(pairs, leaf):
    """Differentiate the weighted sum of heads with respect to a variable."""
    value, first = np.zeros(leaf.size), np.zeros((DIRECTIONS, leaf.size))
    own = slice(leaf.start, leaf.start + leaf.size)
    order = 2
    for head, weight in pairs:
        order = min(order, head.order - 1, weight.order)
        if head.first is None:
            continue
        slopes = head.first[own].reshape(leaf.size, -1)
        value += slopes @ weight.value.reshape(-1)
        if weight.first is not None:
            first += weight.first.reshape(DIRECTIONS, -1) @ slopes.T
        if head.second is not None:
            curves = head.second[own].reshape(leaf.size, DIRECTIONS, -1)
            first += (curves @ weight.value.reshape(-1)).T
    return Jet(value.reshape(leaf.shape), first.reshape(DIRECTIONS, *leaf.shape), None, order)


def check(jet):
    """Raise Invalid for values that float32 cannot compute well.

    Raises:
        Invalid: there is something too large, or no number.
    """
    for each, most in ((jet.value, LARGEST), (jet.first, LARGEST * 10), (jet.second, LARGEST * 100)):
        if each is not None and each.size and not np.abs(each).max() < most:
            raise Invalid("too large")
