"""Forks that replace new interpreters (tests/warm.py) exit in the same way."""

import re
import subprocess
import sys

import pytest

from tests import warm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked so on Linux alone")

ADDRESS = re.compile("0x[0-9a-f]+")
PROGRAMS = {
    "text without a line's end": "print('said', end='')",
    "a status": "import sys; sys.exit(3)",
    "a status beyond a byte": "import sys; sys.exit(259)",
    "a text": "import sys; sys.exit('told')",
    "an exception": "1 / 0",
    "an interrupt": "raise KeyboardInterrupt",
    "a thread that is joined, and a daemon": """
import threading, time
threading.Thread(target=lambda: (time.sleep(0.1), print('joined'))).start()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
""",
    "callbacks": "import atexit; atexit.register(print, 'last'); atexit.register(print, 'first')",
    "a callback that fails": "import atexit; atexit.register(print, 'last'); atexit.register(lambda: 1 / 0)",
    "output that nobody reads": "import os, sys; os.close(1); sys.stdout.write('lost')",
    "no output at all": "import sys; sys.stdout = sys.stderr = None",
}


def ending(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, [ADDRESS.sub("", line) for line in done.stderr.splitlines() if line[0] != " "]


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_fork_ends_as_an_interpreter_does(kind, monkeypatch):
    actual = ending(PROGRAMS[kind])
    monkeypatch.setattr(warm.Popen, "server", None)
    assert actual == ending(PROGRAMS[kind])


SHOWN = "class Told:\n    def __del__(self): print('gone', flush=True)\nkept = [Told()]\nkept.append(kept)"


def test_modules_are_finalized_on_request(whole_endings):
    assert ending(SHOWN)[1] == "gone\n"


def test_modules_are_not_finalized_by_default():
    assert ending(SHOWN)[1] == ""
