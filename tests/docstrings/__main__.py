"""The examples in MXNet's docstrings, compared with MXNet: ``python -m tests.docstrings CHECKOUT PEER [PATTERN]``.

CHECKOUT is a checkout of MXNet 1.9.1, PEER an interpreter that has it. The examples of each docstring in whose path and
name the pattern is found are run on both, and what they print and assign is compared. An example that MXNet itself
refuses says nothing. Each difference is printed.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import selectors
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.docstrings.examples import Docstring, docstrings, same
from tests.peers import environment

Outcome = list[str]
SECONDS = 120
"""The most that a docstring may take."""
KNOWN = {
    r"debug_str\(\)": "it tells flowmx's steps",
    r"wait_to_read\n.*time\(\)": "times",
    r"DataLoader\n_ = next": "batches of workers are on the CPU as all others",
    r"NDArrayIter\n\[batch.data": "the batches of a csr matrix are csr, as the docstring has it",
    r"contrib.py:while_loop": "MXNet leaves what comes after the last step unwritten",
    r"dlpack\w*\nx$": "what is written into shared memory is seen, as the docstring has it",
    r"rint\nnp.rint": "halves go to the even number, as in NumPy",
    r"norm\nnp.linalg.norm\(a, -\d\)": "the norm of numbers with a zero among them is 0, as in NumPy",
    r"argmax\nb$": "MXNet does not write its array out",
    r"tile\nnp.tile\(2": "MXNet answers NumPy's array",
    r"NDArrayIter\nfor batch": "its order is random",
    r"svd\nut, s, v|eigh\n(w, )?v": "the signs of such vectors are not unique, nor are those of singular values of 0",
    r"recordio.*\nheader =": "the type is called as it is imported",
    r"rand_zipfian\nsamples": "the name of a node inside",
    r"= np.ndarray\(": "what is not written",
}
"""Differences that are meant, by a pattern of the docstring and its example, and why."""


class Runner:
    """A process that runs examples on a system; one that dies is started again."""

    def __init__(self, python: str, system: str) -> None:
        self._command = [python, "-W", "ignore", str(Path(__file__).with_name("runner.py")), system]
        self._process: subprocess.Popen[str] | None = None

    def run(self, docstring: Docstring) -> list[Outcome]:
        """The outcome of each example."""
        if self._process is None:
            paths = os.pathsep.join(filter(None, sys.path)) if self._command[-1] == "flowmx" else ""
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env=environment(PYTHONPATH=paths),
            )  # fmt: skip
        answer = self._asked(self._process, json.dumps(docstring.as_dict()))
        if not answer:
            self.end()
            return [["raised", "Died", "the process died, or did not answer"]] * len(docstring.lines)
        outcomes: list[Outcome] = json.loads(answer)
        return outcomes

    @staticmethod
    def _asked(process: subprocess.Popen[str], line: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            return ""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            return process.stdout.readline() if selector.select(SECONDS) else ""

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def differences(docstring: Docstring, ours: list[Outcome], theirs: list[Outcome]) -> Iterator[tuple[str, str, str]]:
    """Each example that MXNet runs and flowmx does not, or differently, with both outcomes."""
    for line, our, their in zip(docstring.lines, ours, theirs, strict=True):
        if their[0] == "raised":
            continue
        if our[0] == "raised" or not same(our[1], their[1], with_numbers=not docstring.is_random):
            yield line, " ".join(our), their[1]


def main() -> int:
    """Run them, and tell how many are the same."""
    parser = argparse.ArgumentParser(prog="python -m tests.docstrings", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a checkout of MXNet 1.9.1")
    parser.add_argument("peer", help="an interpreter that has MXNet 1.9.1")
    parser.add_argument("pattern", nargs="?", default="", help="a regular expression")
    args = parser.parse_args()
    chosen = [each for each in docstrings(args.checkout) if re.search(args.pattern, each.name)]
    ours, theirs = Runner(sys.executable, "flowmx"), Runner(args.peer, "mxnet")
    counts: collections.Counter[str] = collections.Counter()
    for docstring in chosen:
        actual, expected = ours.run(docstring), theirs.run(docstring)
        counts["examples"] += len(docstring.lines)
        counts["refused by MXNet"] += sum(each[0] == "raised" for each in expected)
        wrong = False
        for line, our, their in differences(docstring, actual, expected):
            reason = next(
                (why for pattern, why in KNOWN.items() if re.search(pattern, f"{docstring.name}\n{line}")), ""
            )
            counts["meant" if reason else "different"] += 1
            wrong = wrong or not reason
            if not reason:
                print(f"--- {docstring.name}\n>>> {line}\nflowmx: {our}\nMXNet:  {their}", flush=True)
        counts["docstrings"] += 1
        counts["docstrings that differ"] += wrong
    ours.end()
    theirs.end()
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    return bool(counts["different"])


if __name__ == "__main__":
    sys.exit(main())
