"""The page docs/features.md, which lists the features of the matrix."""

from tests.matrix.features import APART, FEATURES, Feature, pairs

__all__ = ["page"]

HEAD = """# Features that are tested together

Many faults occur only when two features are used together. `tests/matrix/` therefore tests every pair of the features
below: {cells} pairs. A *workload* is a computation in steps. The steps of two workloads are interleaved, and each
workload must return the same result as when it runs alone. A *scope* is a setting or an environment: a workload must
return the same result inside the scope as outside. Two scopes are nested in both orders.

`make test` interleaves all workloads in one run, runs all of them in each scope, and tests each pair of scopes.
`make soak` tests each pair separately.

A new feature needs a row in `tests/matrix/features.py`: a test fails if no row covers a public module. After adding
one, run `python -m tests.matrix` to write this page.

| feature | kind | covers |
|---|---|---|
"""


def _row(feature: Feature) -> str:
    kind, covers = "scope" if feature.is_scope else "workload", ", ".join(f"`mx.{name}`" for name in feature.covers)
    return f"| {feature.name} | {kind} | {covers} |\n"


def page() -> str:
    """Return the text of the page."""
    rows = "".join(map(_row, FEATURES))
    apart = "".join(f"| {one} | {other} | {why} |\n" for (one, other), why in APART.items())
    tail = f"\n## Pairs that cannot meet\n\n| one | other | why |\n|---|---|---|\n{apart}" if apart else ""
    return HEAD.format(cells=len(pairs())) + rows + tail
