"""Choice of values to compute again so that a training step fits into a memory budget at the least cost.

A choice has three parts. *How dear*: what takes at most so long for each byte that it saves is computed again; cheap
results (normalisations, activations) go first, convolutions and products last. *Segments*: the forward pass is cut
where few values cross, these are kept, and from them the backward pass computes one segment at a time; with segments
of about the square root of the whole this is the schedule of T. Chen et al., "Training Deep Nets with Sublinear Memory
Cost", 2016. *Until*: the dearest are computed again only up to some step, since what is made late in the forward pass
is needed early in the backward pass.

Each choice is judged by the bytes that are alive step by step, which takes time linear in the size of the graph; a few
dozen are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from flowmx.graph.passes.repeat import Repeats

_CLASSES = 8
"""Number of cost classes that nodes are sorted into."""
_HALVINGS = 10
"""Number of times that segments are halved."""
_FINE = 6
"""Number of bisections of the last range."""
_SEGMENTS = 3
"""Number of fitting segment sizes with which the rest is tried."""


class Choice(NamedTuple):
    """A set of nodes to compute again, with its memory and cost.

    Attributes:
        again: positions in the forward pass.
        peak: the most bytes alive at one step.
        price: about how long it takes, in bytes that could be moved meanwhile.
    """

    again: Sequence[int]
    peak: int
    price: float


def choose(repeats: Repeats, budget: int) -> Choice:
    """The cheapest choice that was found within the budget, or else the one with the fewest bytes."""
    known: Choice | None = repeats.choices.get(budget)
    if known is None:
        known = repeats.choices[budget] = _choose(_Search(repeats), budget)
    return known


def _choose(search: _Search, budget: int) -> Choice:
    if not search.classes:
        return search.judge(())
    fitting = search.segments(len(search.classes) - 1)
    least = min(fitting, key=lambda each: each[1].peak)[1]
    if least.peak > budget:
        return least
    low, high = 0, len(search.classes) - 1  # the class `high` fits
    while low < high:
        middle = (low + high) // 2
        found = search.segments(middle)
        if min(choice.peak for _, choice in found) <= budget:
            high, fitting = middle, found
        else:
            low = middle + 1
    fitting = sorted((each for each in fitting if each[1].peak <= budget), key=lambda each: each[1].price)
    return min((search.shortened(high, *each, budget) for each in fitting[:_SEGMENTS]), key=lambda each: each.price)


def segments(repeats: Repeats, count: int) -> list[int]:
    """The steps before which about so many segments of the forward pass end, where few bytes cross to the next one."""
    search = _Search(repeats)
    if not search.classes:
        return []
    return [*[cut + 1 for cut in search.cuts(len(search.classes) - 1, 1 / count)], repeats.forward]


class _Search:
    """Choices for one graph.

    Attributes:
        classes: what results cost at most for each of their bytes, from cheap to dear.
    """

    def __init__(self, repeats: Repeats) -> None:
        self._repeats = repeats
        dear = np.array(repeats.cost) / np.maximum(1, repeats.bytes)
        self._dear = np.where(np.array(repeats.bytes) > 0, dear, 0.0)
        found = np.unique(np.ceil(2 * np.log2(self._dear[np.array(repeats.may, bool) & (self._dear > 0)])) / 2)
        if len(found) > _CLASSES:
            found = np.unique(np.quantile(found, np.linspace(0, 1, _CLASSES), method="higher"))
        self.classes = [float(each) for each in 2**found]
        self._crossing, self._last = self._crossings()

    def _crossings(self) -> tuple[np.ndarray, list[int]]:
        """The bytes that cross from each step of the forward pass to later ones, and the last reader of each value."""
        values, forward = self._repeats.values, self._repeats.forward
        last = [-1] * len(values.sizes)
        for at in range(forward):
            for value in values.steps[at].reads:
                last[value] = at
        change = np.zeros(forward + 1, np.int64)
        for at in range(forward):
            for value in values.steps[at].writes:
                if last[value] > at:
                    change[at] += values.sizes[value]
                    change[last[value]] -= values.sizes[value]
        return np.cumsum(change), last

    def judge(self, again: Sequence[int]) -> Choice:
        """A choice with what it saves and costs."""
        return Choice(again, *self._repeats.weigh(again))

    def segments(self, klass: int) -> list[tuple[float, Choice]]:
        """Choices with longer and shorter segments."""
        found: list[tuple[float, Choice]] = []
        for segment in self._lengths(klass):
            found.append((segment, self._choice(klass, segment, self._repeats.forward)))
            if len(found) > 2 and found[-1][1].peak > found[-2][1].peak > found[-3][1].peak:
                break
        return found

    def shortened(self, klass: int, segment: float, choice: Choice, budget: int) -> Choice:
        """The choice with the most costly class only up to the earliest step that still fits."""
        low, high, best = 0, self._repeats.forward, choice
        for _ in range(_FINE):
            middle = (low + high) // 2
            if middle == low:
                break
            found = self._choice(klass, segment, middle)
            if found.peak <= budget:
                high = middle
                best = min(best, found, key=lambda each: each.price)
            else:
                low = middle
        return best

    def _lengths(self, klass: int) -> Iterator[float]:
        yield float("inf")
        whole = self._saved(klass).sum()
        for halved in range(1, _HALVINGS):
            yield whole / 2**halved

    def _saved(self, klass: int) -> np.ndarray:
        """The bytes of each step's results, where it may be computed again."""
        may = np.array(self._repeats.may, bool) & (self._dear <= self.classes[klass])
        return np.where(may, np.array(self._repeats.bytes, np.int64), 0)

    def _choice(self, klass: int, segment: float, until: int) -> Choice:
        """The choice for a cost class, a length of segments in bytes, and a last step for that class."""
        most = self.classes[klass]
        always = self.classes[klass - 1] if klass else 0.0
        allowed = self._dear <= most
        allowed[until:] &= self._dear[until:] <= always
        again = self._repeats.select(allowed.tolist().__getitem__, self._kept(self._cuts(klass, segment, until)))
        return self.judge(again)

    def cuts(self, klass: int, part: float) -> list[int]:
        """The steps after which segments of such a part of all that may be computed again end."""
        return self._cuts(klass, part * float(self._saved(klass).sum()), self._repeats.forward)

    def _cuts(self, klass: int, segment: float, until: int) -> list[int]:
        """The steps after which a segment ends: of those that make it long enough, where the fewest bytes cross."""
        total = np.cumsum(self._saved(klass)[:until])
        cuts: list[int] = []
        start = 0.0
        while len(total) and start + segment < total[-1]:
            low = int(np.searchsorted(total, start + segment / 2))
            high = max(low + 1, int(np.searchsorted(total, start + segment, side="right")))
            window = self._crossing[low:high]
            cut = high - 1 - int(np.argmin(window[::-1]))
            cuts.append(cut)
            start = float(total[cut])
        return cuts

    def _kept(self, cuts: Sequence[int]) -> set[int]:
        """The values that are read after a cut, and made before it."""
        kept: set[int] = set()
        values = self._repeats.values
        following = np.searchsorted(np.array(cuts, np.int64), np.arange(self._repeats.forward)).tolist()
        for at in range(self._repeats.forward):
            cut = following[at]
            if cut < len(cuts):
                kept.update(value for value in values.steps[at].writes if self._last[value] > cuts[cut])
        return kept
