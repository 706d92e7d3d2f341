"""Progress bars: a live line on a terminal, separate lines elsewhere, nothing on standard output."""

import io
import re

import pytest

from flowmx import progress
from flowmx.progress import Bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def screen(text):
    """Return the lines that a terminal shows; a carriage return overwrites the line."""
    plain = re.sub(r"\x1b\[\d+m", "", text)
    lines = []
    for line in plain.split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return lines


def test_occasional_lines_without_a_terminal(clock):
    out = io.StringIO()
    with Bar(100, "packing", out) as bar:
        for _ in range(100):
            clock[0] += 0.5
            bar.step()
    lines = out.getvalue().splitlines()
    assert lines[0] == "packing  20/100  2.0 steps/s  0:40 left"
    assert lines[-1] == "packing  100/100  2.0 steps/s"
    assert len(lines) == 6 and "\r" not in out.getvalue() and "\x1b" not in out.getvalue()


def test_a_live_line_on_a_terminal(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal()
    with Bar(4, "epoch 1", out) as bar:
        for number in range(4):
            clock[0] += 1
            bar.step(note="loss 0.123456" if number < 2 else "loss 0.1")
            if number == 1:
                assert screen(out.getvalue()) == [
                    "epoch 1  [##########          ] 2/4  1.0 steps/s  0:02 left  loss 0.123456"
                ]
                bar.say("saved")
    assert screen(out.getvalue()) == ["saved", "epoch 1  [####################] 4/4  1.0 steps/s  loss 0.1", ""]
    assert "\x1b[32m" in out.getvalue()


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colors_if_disabled(variables, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    out = Terminal()
    with Bar(1, "x", out) as bar:
        bar.step()
    assert "\x1b" not in out.getvalue()


def test_an_unknown_total_and_no_step(clock, capsys):
    with Bar(None, "reading"):
        pass
    with Bar(None, "reading") as bar:
        clock[0] += 7200
        bar.step(3)
    with Bar(0, "nothing"):
        pass
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == ["reading  0", *["reading  3  0.0 steps/s"] * 2, "nothing  0"]


def test_times_above_an_hour():
    assert progress._clock(3 * 3600 + 62) == "3:01:02"


def test_the_numbers_fit_eighty_columns(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal()
    with Bar(1000, "epoch 10/10", out, unit="batches") as bar:
        clock[0] += 5
        bar.step(500, "loss 0.1235  accuracy 0.9876")
        assert screen(out.getvalue()) == [
            "epoch 10/10  500/1000  100 batches/s  0:05 left  loss 0.1235  accuracy 0.9876"
        ]
        clock[0] += 5
        bar.step(500, "loss 0.1")
    assert screen(out.getvalue())[0] == "epoch 10/10  [####################] 1000/1000  100 batches/s  loss 0.1"


def test_bytes_are_shown_as_megabytes(clock):
    bar = Bar(3_000_000, "weights.params", io.StringIO(), unit="bytes")
    clock[0] += 1
    bar.step(1_500_000)
    assert bar.line() == "weights.params  1.5/3.0  1.5 MB/s  0:01 left"
