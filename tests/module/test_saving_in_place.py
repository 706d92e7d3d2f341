"""Saving over existing files: they keep their inode, and a crash does not damage them."""

import errno
import os
import shutil
import stat
import sys
import tempfile
import threading
from pathlib import Path

import pytest

import flowmx as mx
from flowmx.serialization import in_place, locks, scratch
from flowmx.serialization.atomic import remove_scratch_files, replace_file
from flowmx.serialization.marks import mark
from flowmx.serialization.reading import read_whole

SIZES = {"nothing": 0, "tiny": 5, "less than a mark": 40, "a mark": 64, "small": 300, "blocks": 3000}


def make_content(size: int, first: int = 0) -> bytes:
    return bytes((first + i) % 251 + 1 for i in range(size))


@pytest.fixture
def spare(tmp_path, monkeypatch):
    """Return the folder of copies of files in folders that are not writable."""
    monkeypatch.setenv("FLOWMX_KERNEL_CACHE", str(tmp_path / "cache"))
    mx.settings.reload()
    yield tmp_path / "cache" / "saving"
    monkeypatch.undo()
    mx.settings.reload()


def dense():
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    return net


def trainer_of(net):
    trainer = mx.gluon.Trainer(net.collect_params(), "adam")
    with mx.autograd.record():
        loss = net(mx.nd.ones((1, 3))).sum()
    loss.backward()
    trainer.step(1)
    return trainer


def save_functions():
    net = dense()
    return {
        "block": net.save_parameters,
        "parameters": net.collect_params().save,
        "arrays": lambda path: mx.nd.save(path, [mx.nd.ones(3)]),
        "symbol": mx.sym.Variable("x").save,
        "trainer": trainer_of(net).save_states,
    }


@pytest.mark.parametrize("name", save_functions())
def test_an_open_handle_reads_the_saved_content(name, tmp_path):
    save = save_functions()[name]
    save(str(tmp_path / "new"))
    with tempfile.NamedTemporaryFile(dir=tmp_path) as file:
        save(file.name)
        file.seek(0)
        assert file.read() == (tmp_path / "new").read_bytes() != b""


def test_links_and_permissions_are_preserved(tmp_path):
    first, linked, symbolic = (tmp_path / name for name in ("first", "linked", "symbolic"))
    first.write_bytes(b"old")
    first.chmod(0o640)
    os.link(first, linked)
    symbolic.symlink_to(first)
    inode = first.stat().st_ino
    replace_file(symbolic, [b"new", b"er"])
    assert linked.read_bytes() == first.read_bytes() == b"newer"
    assert first.stat().st_ino == inode and stat.S_IMODE(first.stat().st_mode) == 0o640 and symbolic.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "linked", "symbolic"]


def test_saving_through_a_dangling_link_creates_its_target(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    replace_file(tmp_path / "link", [b"new"])
    assert (tmp_path / "target").read_bytes() == b"new" and (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("old", SIZES)
@pytest.mark.parametrize("new", SIZES)
def test_at_each_line_of_the_writer_a_reader_finds_the_old_content_or_the_new(old, new, tmp_path, monkeypatch):
    before, after = make_content(SIZES[old]), make_content(SIZES[new], 100)
    path = tmp_path / "file"
    path.write_bytes(before)
    monkeypatch.setattr(in_place, "_BLOCK", 1000)
    monkeypatch.setattr(in_place.os, "fsync", lambda descriptor: None)
    files = {module.__file__ for module in (in_place, scratch)}
    contents = []

    def read_at_each_line(frame, event, argument):
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            contents.append(read_whole(path))
        return read_at_each_line

    outer = sys.gettrace()
    sys.settrace(read_at_each_line)
    try:
        replace_file(path, [after[:10], after[10:]])
    finally:
        sys.settrace(outer)
    assert read_whole(path) == path.read_bytes() == after
    turn = contents.index(after) if before != after else 0
    assert (
        contents[:turn] == [before] * turn
        and contents[turn:] == [after] * (len(contents) - turn)
        and turn < len(contents) - 5
    )
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def interrupt_write(path: Path, new: bytes) -> None:
    """Write to a file in a process that is killed in the middle of the write."""
    child = os.fork()
    if not child:
        vars(in_place)["_write_content"] = lambda descriptor, data, size: os._exit(0)
        replace_file(path, [new])
    os.waitpid(child, 0)


def test_after_a_kill_the_new_content_is_read_and_the_next_save_cleans_up(tmp_path):
    path = tmp_path / "file.params"
    mx.nd.save(str(path), {"x": mx.nd.zeros(3)})
    mx.nd.save(str(tmp_path / "other"), {"x": mx.nd.ones(3)})
    interrupt_write(path, (tmp_path / "other").read_bytes())
    assert len(list(tmp_path.glob(".flowmx-*.saved"))) == 1
    assert mx.nd.load(str(path))["x"].asnumpy().tolist() == [1, 1, 1]
    remove_scratch_files(tmp_path)
    assert mx.nd.load(str(path))["x"].asnumpy().tolist() == [1, 1, 1]
    mx.nd.save(str(path), {"x": mx.nd.full(3, 2)})
    assert mx.nd.load(str(path))["x"].asnumpy().tolist() == [2, 2, 2]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file.params", "other"]


def test_an_interrupted_file_without_its_copy_is_an_error(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    interrupt_write(path, b"new")
    (tmp_path / "elsewhere").mkdir()
    shutil.move(path, tmp_path / "elsewhere" / "file")
    with pytest.raises(OSError, match=r"interrupted.*flowmx-.*elsewhere"):
        read_whole(tmp_path / "elsewhere" / "file")


def test_a_marker_cannot_name_a_path_outside_the_folder(tmp_path):
    (tmp_path / "file").write_bytes(mark("../../../secret1"))
    assert read_whole(tmp_path / "file") == mark("../../../secret1")


def test_a_stale_copy_is_ignored_after_another_writer(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    interrupt_write(path, b"new")
    path.write_bytes(b"by another program")
    assert read_whole(path) == b"by another program"


@pytest.mark.parametrize("at", ["_write_at", "_reserve"])
def test_a_full_disk_leaves_a_file_unchanged(at, tmp_path, monkeypatch):
    path, inode = tmp_path / "file", None
    path.write_bytes(b"old content")
    inode = path.stat().st_ino
    real, calls = getattr(in_place, at), []

    def full(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(in_place, at, full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, [make_content(500)])
    assert path.read_bytes() == b"old content" and path.stat().st_ino == inode
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def break_writes(monkeypatch, error):
    """Fail each write of content in place with this error, after a part of the content."""

    def fail(descriptor, data, size):
        os.write(descriptor, b"half of it")
        raise error

    monkeypatch.setattr(in_place, "_write_content", fail)


def test_a_file_that_cannot_be_completed_is_replaced(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o604)
    break_writes(monkeypatch, OSError(errno.EIO, "Input/output error"))
    replace_file(path, [b"new"])
    assert path.read_bytes() == b"new" and stat.S_IMODE(path.stat().st_mode) == 0o604
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_an_interrupt_is_raised_after_the_new_content_is_written(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    break_writes(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        replace_file(path, [b"new"])
    assert path.read_bytes() == b"new"


def test_an_incomplete_hard_link_is_read_from_its_copy(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    os.link(path, tmp_path / "linked")
    break_writes(monkeypatch, OSError(errno.EIO, "Input/output error"))
    with pytest.raises(OSError, match="Input/output"):
        replace_file(path, [b"new"])
    assert read_whole(path) == read_whole(tmp_path / "linked") == b"new"


def test_failing_content_leaves_the_file_unchanged(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def chunks():
        yield b"new"
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        replace_file(path, chunks())
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


def close_folder(monkeypatch, folder):
    """Make a folder reject new files, which permissions do not do for root."""
    real = Path.open

    def open_existing(self, mode="r", *arguments, **keywords):
        if "x" in mode and self.parent == folder:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return real(self, mode, *arguments, **keywords)

    monkeypatch.setattr(Path, "open", open_existing)


def test_a_file_in_a_closed_folder_is_written_with_its_copy_elsewhere(tmp_path, monkeypatch, spare):
    (tmp_path / "closed").mkdir()
    path = tmp_path / "closed" / "file"
    path.write_bytes(b"old")
    close_folder(monkeypatch, path.parent)
    replace_file(path, [b"new"])
    assert path.read_bytes() == b"new" and list(spare.iterdir()) == []
    interrupt_write(path, b"newer")
    assert len(list(spare.iterdir())) >= 1 and read_whole(path) == b"newer"
    replace_file(path, [b"newest"])
    assert path.read_bytes() == b"newest" and not list(spare.glob("*.saved"))


def test_a_new_file_in_a_closed_folder_is_refused_by_its_name(tmp_path, monkeypatch, spare):
    close_folder(monkeypatch, tmp_path)
    with pytest.raises(PermissionError, match=r"folder .* is not writable.*file.params"):
        mx.nd.save(str(tmp_path / "file.params"), [mx.nd.ones(2)])


def test_a_file_without_a_name_is_written(spare):
    with tempfile.TemporaryFile() as file:
        replace_file(f"/proc/self/fd/{file.fileno()}", [b"new"])
        file.seek(0)
        assert file.read() == b"new"


def test_pipes_and_devices_are_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    replace_file(pipe, [b"through ", b"a pipe"])
    reader.join()
    assert received == [b"through a pipe"] and pipe.is_fifo()
    replace_file(os.devnull, [b"nothing"])
    with pytest.raises(OSError, match="No space left"):
        replace_file("/dev/full", [b"more"])
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path, [b"more"])


def test_standard_output_may_be_the_file(tmp_path):
    output = os.dup(1)  # as the shell's `> out` does
    try:
        with (tmp_path / "out").open("wb") as file:
            os.dup2(file.fileno(), 1)
        replace_file("/dev/stdout", [b"out"])
    finally:
        os.dup2(output, 1)
        os.close(output)
    assert (tmp_path / "out").read_bytes() == b"out"


def test_several_writers_of_one_file_leave_the_content_of_one(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(in_place, "_BLOCK", 100)
    contents = [make_content(2000 + 100 * i, i) for i in range(4)]
    done, events = threading.Event(), set()

    def read():
        while not done.is_set():
            events.add(read_whole(path))

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=replace_file, args=(path, [each])) for each in contents * 3]
    reader.start()
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    done.set()
    reader.join()
    assert path.read_bytes() in contents and events <= {b"old", *contents}
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_waiting_for_another_writer_times_out(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(locks, "_TIMEOUT", 0.0)
    lock = tmp_path / f".flowmx-{path.stat().st_dev}-{path.stat().st_ino}.lock"
    with locks.exclusive(lock), pytest.raises(TimeoutError, match="another process"):
        replace_file(path, [b"new"])
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1
    replace_file(path, [b"new"])
    assert path.read_bytes() == b"new"


def test_an_interrupted_checkpoint_is_read_and_cleaned_up(tmp_path):
    run = mx.checkpoint.Checkpoints(tmp_path)
    (tmp_path / ".flowmx-0123456789abcdef.tmp").write_bytes(b"left by a kill")
    assert run.newest() is None and list(tmp_path.iterdir()) == []
