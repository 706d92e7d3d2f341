"""The flight recorder: its records, its cost, and the reports it writes automatically."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading

import pytest

import flowmx as mx
from flowmx import settings
from flowmx.devices.sim import simulated
from flowmx.engine.runtime import engine
from flowmx.observability.doctor.rules import diagnose
from flowmx.observability.flight import folder, messages, snapshot, stacks, watcher
from flowmx.observability.flight.watcher import Watcher


def queued(name="queued"):
    mx.engine.push(lambda: None, name=name, device=mx.cpu()).wait()


def program(source, tmp_path, **variables):
    """Run a program; return the completed process, and the reports that it wrote."""
    variables = {"FLOWMX_RUNTIME_FOLDER": str(tmp_path), **variables}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], cwd=tmp_path, env={**os.environ, **variables}, timeout=60,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    reports = [json.loads(path.read_text()) for path in (tmp_path / "flowmx").glob("*.report.json")]
    return done, reports


def test_it_records_the_last_operations_and_the_running_ones():
    queued("first of all")
    gate = threading.Event()
    handle = mx.engine.push(gate.wait, name="stuck", device=mx.cpu())
    actual = snapshot.take()
    gate.set()
    handle.wait()
    assert "first of all" in [each["name"] for each in actual["last"]]
    (stuck,) = [each for each in actual["operations"] if each["name"] == "stuck"]
    assert stuck["state"] in ("running", "ready") and "test_flight.py" in stuck["line"]
    assert json.dumps(actual, default=str)
    for _ in range(3):
        queued()
    assert len(engine.books.journal) <= engine.books.journal.maxlen


def test_an_awaiting_task_is_named_with_its_line():
    async def main():
        gate = threading.Event()
        handle = mx.engine.push(gate.wait, name="stuck", device=mx.cpu())

        async def waiter():
            await handle  # here

        import asyncio

        task = asyncio.create_task(waiter(), name="the waiter")
        while not engine.waits:  # each 64th await lets others run first
            await asyncio.sleep(0)
        actual = snapshot.take()
        gate.set()
        await task
        return actual

    (wait,) = [each for each in mx.run(main())["waits"] if each["who"] == "task the waiter"]
    assert wait["stack"][0].endswith("await handle  # here")
    assert not engine.waits


def test_messages_are_kept():
    with messages.exchange("server 0", "push", keys=["a"]):
        (under_way,) = snapshot.take()["exchanges"]
    assert (under_way["peer"], under_way["facts"]) == ("server 0", {"keys": ["a"]})
    assert messages.last[-1].operation == "push" and messages.last[-1].seconds > 0
    assert snapshot.take()["exchanges"] == []


def test_a_stall_is_reported_once(monkeypatch):
    reports = []
    monkeypatch.setattr(watcher, "_report", reports.append)
    mx.nd.waitall()
    watch = Watcher()
    watch._check()
    gate = threading.Event()
    mx.engine.push(gate.wait, name="stuck", device=mx.cpu())
    with settings.override(stall_seconds=1e-9):
        watch._check()
        watch._check()
        gate.set()
        mx.nd.waitall()
        watch._check()
    assert len(reports) == 1 and "FLOWMX_STALL_SECONDS" in reports[0]


def test_an_out_of_memory_that_is_caught_leaves_a_report(monkeypatch):
    reports = []
    monkeypatch.setattr(watcher, "_report", reports.append)
    watch = Watcher()
    monkeypatch.setattr(watcher, "_watcher", watch)
    queued()
    with simulated("a10", memory=1 << 20):
        with pytest.raises(mx.MXNetError, match="out of memory"):
            mx.nd.ones((1 << 20,), ctx=mx.sim(0)).wait_to_read()
        watch._check()
    assert "sim(0) is out of memory" in reports[0]


def test_a_program_that_dies_while_operations_are_pending_leaves_a_report(tmp_path):
    source = """
        import threading
        import flowmx as mx
        mx.engine.push(lambda: None, name="before it", device=mx.cpu()).wait()
        go_on = threading.Event()
        mx.engine.push(go_on.wait, name="pending", device=mx.cpu())
        threading.Timer(2, go_on.set).start()
        raise ValueError("planted")
    """
    done, (report,) = program(source, tmp_path)
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == "ValueError: planted"
    assert report["why"] == "the program failed: ValueError: planted"
    assert [each["name"] for each in report["last"]][-1] == "before it"


def test_a_program_that_dies_when_idle_leaves_only_the_reason(tmp_path):
    source = """
        import flowmx as mx
        mx.nd.ones((2,)).asnumpy()
        raise ValueError("planted")
    """
    done, reports = program(source, tmp_path)
    assert done.stderr.splitlines()[-1] == "ValueError: planted" and "doctor" not in done.stderr and not reports


def test_a_program_that_dies_during_short_operations_leaves_only_the_reason(tmp_path):
    source = """
        import flowmx as mx
        for _ in range(20):
            mx.engine.push(lambda: sum(range(100_000)), device=mx.cpu())
        raise ValueError("planted")
    """
    done, reports = program(source, tmp_path)
    assert done.stderr.splitlines()[-1] == "ValueError: planted" and "doctor" not in done.stderr and not reports


def test_off_means_off(tmp_path):
    source = """
        import threading
        import flowmx as mx
        from flowmx.engine.runtime import engine
        mx.engine.push(lambda: None, device=mx.cpu()).wait()
        assert engine.books.journal is None and "flowmx-flight" not in [each.name for each in threading.enumerate()]
        raise ValueError("planted")
    """
    done, reports = program(source, tmp_path, FLOWMX_FLIGHT_RECORDER="0")
    assert "ValueError" in done.stderr and not reports and not (tmp_path / "flowmx").exists()


def test_a_fork_has_a_separate_recorder_and_leaves_no_socket(tmp_path):
    source = """
        import os, sys
        import flowmx as mx
        from flowmx.observability.flight import folder
        def queued():
            mx.engine.push(lambda: None, device=mx.cpu()).wait()
        def is_there():
            import time
            until = time.monotonic() + 5
            while not folder.socket_path(os.getpid()).exists() and time.monotonic() < until:
                time.sleep(0.01)
            return folder.socket_path(os.getpid()).exists()
        queued()
        assert is_there()
        child = os.fork()
        queued()
        assert is_there()
        if child:
            assert os.waitpid(child, 0)[1] == 0
    """
    done, _ = program(source, tmp_path)
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "flowmx").glob("*.sock"))


def test_a_folder_that_others_may_enter_is_refused(tmp_path):
    (tmp_path / "flowmx").mkdir(mode=0o755)
    with settings.override(runtime_folder=str(tmp_path)), pytest.raises(PermissionError, match="mode 700"):
        folder.path(make=True)


def test_files_of_killed_processes_are_removed(tmp_path):
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    with settings.override(runtime_folder=str(tmp_path)):
        left, ours, heard = (folder.socket_path(pid, make=True) for pid in (killed.pid, os.getpid(), 2**31 - 1))
        left.touch()
        ours.touch()
        reports = [folder.report(number) for number in range(40)]
        for number, report in enumerate(reports):
            report.write_text("{}")
            os.utime(report, (number, number))
        # The socket of a process that is invisible here, such as in another container, answers.
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(heard))
            listener.listen()
            folder.sweep()
    assert not left.exists() and ours.exists() and heard.exists()
    assert [report for report in reports if report.exists()] == reports[8:]


def test_stacks_omit_the_standard_library_and_flowmx():
    gate = threading.Event()
    handle = mx.engine.push(gate.wait, name="stuck", device=mx.cpu())
    reader = threading.Thread(target=lambda: handle.wait())
    reader.start()
    try:
        while not stacks.lines(stacks.stacks()[reader.ident]):
            pass
        assert "test_flight.py" in stacks.lines(stacks.stacks()[reader.ident])[0]
    finally:
        gate.set()
        reader.join()


@pytest.mark.soak
@pytest.mark.parametrize("fault", ["endless", "stopped", "sleeping loop"])
def test_the_command_names_the_cause_in_another_process(fault, tmp_path):
    sources = {
        "endless": """
            import threading
            import flowmx as mx
            x = mx.nd.ones((300, 300))
            def endless():
                threading.Event().wait()
            mx.engine.push(endless, writes=[x])
            print("ready", flush=True)
            mx.nd.dot(x, x).wait_to_read()
        """,
        "stopped": """
            import os, signal
            import flowmx as mx
            mx.engine.push(lambda: None, device=mx.cpu()).wait()
            print("ready", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        """,
        "sleeping loop": """
            import time
            import flowmx as mx
            async def main():
                await mx.engine.push(lambda: None, device=mx.cpu())
                print("ready", flush=True)
                time.sleep(60)
            mx.run(main())
        """,
    }
    environment = {**os.environ, "FLOWMX_RUNTIME_FOLDER": str(tmp_path)}
    (tmp_path / "program.py").write_text(textwrap.dedent(sources[fault]))
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py")], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "ready\n"
        asked = [sys.executable, "-m", "flowmx", "doctor", str(process.pid), "--seconds", "2", "--json"]
        done = subprocess.run(asked, env=environment, capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 2, done.stderr
        document = json.loads(done.stdout)
        assert diagnose(document["snapshots"])
        first = document["findings"][0]
        expected = {
            "endless": ("an operation that does not end", "threading.Event().wait()"),
            "stopped": ("a process that does not respond", ""),
            "sleeping loop": ("blocked event loop", "time.sleep(60)"),
        }[fault]
        assert first["kind"] == expected[0] and first["line"].endswith(expected[1])
        assert fault != "stopped" or "it is stopped" in first["text"]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


def test_a_snapshot_has_the_last_hundred_operations_that_ended():
    for number in range(110):
        queued(f"queued {number}")
    assert [each["name"] for each in snapshot.take()["last"]] == [f"queued {number}" for number in range(10, 110)]
