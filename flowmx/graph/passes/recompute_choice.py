"""Choice of values to recompute so that a training step fits into a memory budget at the least cost.

A choice has three parts. *Cost class*: values with at most a certain cost per saved byte are recomputed; cheap results
(normalization, activations) first, convolutions and products last. *Segments*: the forward pass is cut where few values
cross; these are kept, and the backward pass recomputes one segment at a time from them. With segments of about the
square root of the whole, this is the schedule of T. Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
*Last step*: values of the most expensive class are recomputed only up to some step, since values from late in the
forward pass are needed early in the backward pass.

Each choice is judged by the bytes alive at each step, in time linear in the size of the graph; a few dozen are judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from flowmx.graph.passes.recompute_candidates import RecomputeCandidates

_CLASSES = 8
"""The number of cost classes that nodes are sorted into."""
_HALVINGS = 10
"""The number of times that segments are halved."""
_BISECTIONS = 6
"""The number of bisections of the last range."""
_SEGMENTS = 3
"""The number of fitting segment sizes for which the last step is searched."""


class Choice(NamedTuple):
    """A set of nodes to recompute, with its memory and cost.

    Attributes:
        recomputed: positions in the forward pass.
        peak: maximum number of bytes alive at one step.
        price: the approximate time, as the bytes that could be moved in it.
    """

    recomputed: Sequence[int]
    peak: int
    price: float


def choose(repeats: RecomputeCandidates, budget: int) -> Choice:
    """Return the cheapest choice within the budget, or else the one with the lowest peak."""
    choice: Choice | None = repeats.choices.get(budget)
    if choice is None:
        choice = repeats.choices[budget] = _choose(_Search(repeats), budget)
    return choice


def _choose(search: _Search, budget: int) -> Choice:
    if not search.classes:
        return search.evaluate(())
    fitting = search.segments(len(search.classes) - 1)
    least = min(fitting, key=lambda row: row[1].peak)[1]
    if least.peak > budget:
        return least
    low, high = 0, len(search.classes) - 1  # the class `high` fits
    while low < high:
        middle = (low + high) // 2
        candidates = search.segments(middle)
        if min(choice.peak for _, choice in candidates) <= budget:
            high, fitting = middle, candidates
        else:
            low = middle + 1
    fitting = sorted((row for row in fitting if row[1].peak <= budget), key=lambda row: row[1].price)
    return min((search.shorten(high, *row, budget) for row in fitting[:_SEGMENTS]), key=lambda choice: choice.price)


def segments(repeats: RecomputeCandidates, count: int) -> list[int]:
    """Return the steps before which ``count`` segments of the forward pass end, where few bytes cross."""
    search = _Search(repeats)
    if not search.classes:
        return []
    return [*[cut + 1 for cut in search.cuts(len(search.classes) - 1, 1 / count)], repeats.forward]


class _Search:
    """Choices for one graph.

    Attributes:
        classes: the highest cost per byte of each class, from cheap to expensive.
    """

    def __init__(self, repeats: RecomputeCandidates) -> None:
        self._repeats = repeats
        cost = np.array(repeats.cost) / np.maximum(1, repeats.bytes)
        self._cost = np.where(np.array(repeats.bytes) > 0, cost, 0.0)
        levels = np.unique(
            np.ceil(2 * np.log2(self._cost[np.array(repeats.recomputable, bool) & (self._cost > 0)])) / 2
        )
        if len(levels) > _CLASSES:
            levels = np.unique(np.quantile(levels, np.linspace(0, 1, _CLASSES), method="higher"))
        self.classes = [float(level) for level in 2**levels]
        self._crossing, self._last = self._crossings()

    def _crossings(self) -> tuple[np.ndarray, list[int]]:
        """Return the bytes that cross from each forward step to later ones, and the last reader of each value."""
        values, forward = self._repeats.values, self._repeats.forward
        last = [-1] * len(values.sizes)
        for index in range(forward):
            for value in values.steps[index].reads:
                last[value] = index
        change = np.zeros(forward + 1, np.int64)
        for index in range(forward):
            for value in values.steps[index].writes:
                if last[value] > index:
                    change[index] += values.sizes[value]
                    change[last[value]] -= values.sizes[value]
        return np.cumsum(change), last

    def evaluate(self, recomputed: Sequence[int]) -> Choice:
        """Return a choice with its peak and price."""
        return Choice(recomputed, *self._repeats.measure(recomputed))

    def segments(self, cost_class: int) -> list[tuple[float, Choice]]:
        """Return choices with shorter and shorter segments."""
        choices: list[tuple[float, Choice]] = []
        for segment in self._lengths(cost_class):
            choices.append((segment, self._choice(cost_class, segment, self._repeats.forward)))
            if len(choices) > 2 and choices[-1][1].peak > choices[-2][1].peak > choices[-3][1].peak:
                break
        return choices

    def shorten(self, cost_class: int, segment: float, choice: Choice, budget: int) -> Choice:
        """Recompute the most expensive class only up to the earliest step that still fits."""
        low, high, best = 0, self._repeats.forward, choice
        for _ in range(_BISECTIONS):
            middle = (low + high) // 2
            if middle == low:
                break
            candidate = self._choice(cost_class, segment, middle)
            if candidate.peak <= budget:
                high = middle
                best = min(best, candidate, key=lambda choice: choice.price)
            else:
                low = middle
        return best

    def _lengths(self, cost_class: int) -> Iterator[float]:
        yield float("inf")
        whole = self._recomputable_bytes(cost_class).sum()
        for halved in range(1, _HALVINGS):
            yield whole / 2**halved

    def _recomputable_bytes(self, cost_class: int) -> np.ndarray:
        """Return the size in bytes of each step's results that may be recomputed."""
        recomputable = np.array(self._repeats.recomputable, bool) & (self._cost <= self.classes[cost_class])
        return np.where(recomputable, np.array(self._repeats.bytes, np.int64), 0)

    def _choice(self, cost_class: int, segment: float, until: int) -> Choice:
        """Return the choice for a cost class, a length of segments in bytes, and a last step for that class."""
        limit = self.classes[cost_class]
        always = self.classes[cost_class - 1] if cost_class else 0.0
        allowed = self._cost <= limit
        allowed[until:] &= self._cost[until:] <= always
        crossing = self._crossing_values(self._cuts(cost_class, segment, until))
        recomputed = self._repeats.select(allowed.tolist().__getitem__, crossing)
        return self.evaluate(recomputed)

    def cuts(self, cost_class: int, part: float) -> list[int]:
        """Return the steps after which segments end that hold this part of the bytes that may be recomputed."""
        return self._cuts(cost_class, part * float(self._recomputable_bytes(cost_class).sum()), self._repeats.forward)

    def _cuts(self, cost_class: int, segment: float, until: int) -> list[int]:
        """Return the steps after which segments end: among those with enough bytes, where the fewest bytes cross."""
        total = np.cumsum(self._recomputable_bytes(cost_class)[:until])
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

    def _crossing_values(self, cuts: Sequence[int]) -> set[int]:
        """Return the values that are computed before a cut and read after it."""
        crossing: set[int] = set()
        values = self._repeats.values
        following = np.searchsorted(np.array(cuts, np.int64), np.arange(self._repeats.forward)).tolist()
        for index in range(self._repeats.forward):
            cut = following[index]
            if cut < len(cuts):
                crossing.update(value for value in values.steps[index].writes if self._last[value] > cuts[cut])
        return crossing
