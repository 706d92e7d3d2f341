"""Chapters of the book: their cells for MXNet, and how these train less."""

from __future__ import annotations

import re

__all__ = ["cells", "shorter"]

EPOCHS, BATCH = 2, 16
"""The maximum training of a chapter, except those of :data:`WHOLE` and :data:`LESS`."""
WHOLE = ("linear-networks", "multilayer-perceptrons", "chapter_optimization", "nadaraya", "chapter_preliminaries")
LESS = {
    "convolutional-modern": (1, 8), "fcn": (1, 4), "recommender": (2, 512), "transformer": (20, 64),
    "underfit": (100, 32), "seq2seq": (20, 64), "recurrent": (1, 1024), "multiple-gpus": (1, 16),
    "sentiment-analysis-rnn": (1, 16), "kaggle-dog": (1, 16), "lr-scheduler": (2, 256),
}  # fmt: skip
"""Epochs, and samples of a batch, of some chapters."""
SMALLER = {"0.3, 500, 50)": "0.3, 2, 1)", "(450, 300)": "(150, 100)", "(4000, 4000)": "(400, 400)"}
"""Other things that are made smaller: passes over a picture, its size, matrices."""
CELL = re.compile(r"^```\{\.python[^\n}]*\}\n(.*?)^```", re.S | re.M)


def cells(text: str) -> list[str]:
    """The cells of a chapter that are for MXNet."""
    sources = []
    for body in CELL.findall(text):
        tab = re.match(r"\s*#@tab (.*)", body)
        tabs = tab.group(1).replace(" ", "").split(",") if tab else ["mxnet"]
        if {"mxnet", "all"} & set(tabs):
            sources.append(re.sub(r"^[%!].*$", "", body, flags=re.M))
    return sources


def shorter(cell: str, chapter: str) -> str:
    """A cell that trains less: with fewer epochs, and in smaller batches, since there are at least five of those."""
    most = next((most for name, most in LESS.items() if name in chapter), None)
    if most is None and any(each in chapter for each in WHOLE):
        return cell
    for name, limit in zip(("num_epochs", "batch_size"), most or (EPOCHS, BATCH), strict=True):
        for argument, number in re.findall(rf"({name}=)(\d+)", cell):
            cell = cell.replace(argument + number, f"{argument}{min(int(number), limit)}")
        for line, names, values in re.findall(rf"^(\s*([\w, ]*\b{name}\b[\w, ]*) = (.*))$", cell, re.M):
            parts = re.split(r", (?![^(]*\))", values)
            at = [each.strip() for each in names.split(",")].index(name)
            if at < len(parts) and parts[at].isdigit():
                parts[at] = str(min(int(parts[at]), limit))
                cell = cell.replace(line, line[: len(line) - len(values)] + ", ".join(parts))
    for long, short in SMALLER.items():
        cell = cell.replace(long, short)
    return cell
