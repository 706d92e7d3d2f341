"""The pool of CPU memory: memory in use is never handed out, and free memory is cached within a limit."""

import ctypes
import gc
import mmap
import os
import random
import threading

import numpy as np
import pytest

import flowmx as mx
from flowmx import devices
from flowmx.devices import cpu_pool
from flowmx.devices.cpu_pool import MIN_BYTES, Pool, size_class
from tests.interruptions import strike

FLOAT32 = np.dtype(np.float32)
MIB = 1 << 20

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MAP_PRIVATE"), reason="for systems with private mappings")


def address(array):
    return array.__array_interface__["data"][0]


@pytest.fixture
def small():
    return Pool(limit=16 * MIB)


def big(source, rows=1024):
    return source.array((rows, 256), FLOAT32)


def test_freed_memory_is_reused(small):
    first = big(small)
    where = address(first)
    assert where % 64 == 0
    assert first.flags.c_contiguous
    assert first.flags.writeable
    del first
    assert small.idle_bytes == MIB
    assert address(big(small)) == where


class Holder:
    """An object with the memory of an array, which it keeps alive."""

    def __init__(self, array):
        self.array = array
        self.__array_interface__ = array.__array_interface__


HOLDERS = {
    "a slice": lambda a: a[10:20, ::2],
    "a view of a view": lambda a: a[5:].T[3:][:, ::3],
    "another shape": lambda a: a.reshape(-1),
    "another dtype": lambda a: a.view(np.int32)[3:],
    "a number's place": lambda a: a[1, 1, ...],
    "a broadcast": lambda a: np.broadcast_to(a[0], (4, 256)),
    "a subclass": lambda a: a.view(np.recarray),
    "a memoryview": lambda a: memoryview(a),
    "a cast memoryview": lambda a: memoryview(a).cast("B")[100:200],
    "an array of a memoryview": lambda a: np.asarray(memoryview(a)),
    "frombuffer": lambda a: np.frombuffer(a, np.uint8),
    "ctypes data": lambda a: a.ctypes,
    "a ctypes array": lambda a: (ctypes.c_char * a.nbytes).from_buffer(a),
    "the array interface": lambda a: np.asarray(Holder(a)),
    "dlpack": lambda a: np.from_dlpack(a),
    "an iterator": lambda a: iter(a),
    "a flat iterator": lambda a: a.flat,
}  # fmt: skip


@pytest.mark.parametrize("holder", HOLDERS)
def test_any_reference_keeps_the_memory(small, holder):
    array = big(small)
    where = address(array)
    reference = HOLDERS[holder](array)
    del array
    gc.collect()
    others = [big(small) for _ in range(4)]
    assert where not in map(address, others)
    del reference, others
    gc.collect()
    assert where in map(address, [big(small) for _ in range(5)])


def test_arrays_in_cycles_come_back(small):
    array = big(small)
    where = address(array)
    cycle = [array]
    cycle.append(cycle)
    del array, cycle
    gc.collect()
    assert address(big(small)) == where


@pytest.mark.parametrize("nbytes", [MIN_BYTES, MIN_BYTES + 1, 100_000, MIB - 1, MIB, MIB + 1, 12_345_678, 1 << 30])
def test_size_classes(nbytes):
    size = size_class(nbytes)
    assert nbytes <= size <= nbytes * 9 / 8 + mmap.PAGESIZE
    assert size % mmap.PAGESIZE == 0
    assert size_class(size) == size


def test_the_limit_holds_and_the_oldest_goes_first():
    limited = Pool(limit=3 * MIB)
    arrays = [big(limited) for _ in range(5)]
    where = [address(array) for array in arrays]
    while arrays:
        del arrays[0]
        assert limited.idle_bytes <= 3 * MIB
    assert {address(each) for each in [big(limited), big(limited), big(limited)]} == set(where[2:])


def test_ever_new_sizes_do_not_pile_up():
    plenty, most = Pool(limit=4096 * MIB), 0
    for rows in random.Random(0).sample(range(20_000, 100_000), 200):
        array = big(plenty, rows)
        most = max(most, size_class(array.nbytes))
        assert plenty.idle_bytes + size_class(array.nbytes) <= 1.125 * most + 16 * MIB
        del array


def test_a_loop_over_the_same_sizes_finds_its_memory_again():
    plenty = Pool(limit=4096 * MIB)
    rng = random.Random(1)
    sizes = [rng.randint(1000, 100_000) for _ in range(8)]
    addresses = set()
    for turn in range(4):
        arrays = [big(plenty, rows) for rows in sizes]
        where = {address(array) for array in arrays}
        assert turn == 0 or where == addresses
        addresses = where
        del arrays


def test_nothing_is_kept_without_a_limit():
    none = Pool(limit=0)
    array = big(none)
    del array
    assert none.idle_bytes == 0


def test_clear(small):
    remaining, released = big(small), big(small)
    remaining.fill(3)
    del released
    assert small.idle_bytes == MIB
    small.clear()
    assert small.idle_bytes == 0
    assert (remaining == 3).all()


def test_many_threads():
    shared = Pool(limit=8 * MIB)
    broken = []

    def work(seed):
        rng = random.Random(seed)
        held = []
        for step in range(400):
            if held and rng.random() < 0.5:
                array, mark = held.pop(rng.randrange(len(held)))
                if not (array == mark).all():
                    broken.append(seed)
            else:
                array = shared.array((rng.choice([20_000, 30_000, 100_000]),), FLOAT32)
                mark = seed * 1000 + step
                array.fill(mark)
                held.append((array[5:], mark))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not broken
    assert shared.idle_bytes <= 8 * MIB


def interrupt(source, arrays):
    raise KeyboardInterrupt


def allocate_too(source, arrays):
    """Use the pool as a finalizer or a signal handler may."""
    for rows in (1024, 512, 4096):
        arrays.append(big(source, rows))
        big(source, rows)


@pytest.mark.parametrize("blow", [interrupt, allocate_too])
def test_an_exception_at_any_moment_leaves_a_working_pool(blow):
    moments = 0
    for moment in range(100_000):
        source, arrays = Pool(limit=2 * MIB), []

        def work(source=source):
            for rows in (1024, 1024, 2048, 512, 1024):
                big(source, rows)
            source.clear()

        try:
            struck = strike(work, moment, {cpu_pool.__file__}, lambda s=source, k=arrays: blow(s, k))
        except KeyboardInterrupt:
            struck = True
        arrays += [big(source, rows) for rows in (1024, 1024, 2048, 512)]
        for number, each in enumerate(arrays):
            each[:] = number
        assert [each[0, 0] for each in arrays] == list(range(len(arrays))), "no memory is two arrays'"
        in_use = source.used_bytes
        if blow is allocate_too:
            assert in_use == sum(size_class(each.nbytes) for each in arrays)
        del arrays, each
        source.clear()
        assert big(source).shape == (1024, 256)
        if not struck:
            break
        moments += 1
    assert moments > 50


def test_arrays_of_the_cpu_come_from_it():
    device = devices.get(mx.cpu())
    array = device.allocate((512, 512), FLOAT32)
    where = address(array)
    del array
    assert address(device.allocate((512, 512), FLOAT32)) == where
    tiny = device.allocate((4, 4), FLOAT32)
    assert tiny.base is None


def test_results_never_share_memory_with_arrays_in_use():
    x = mx.nd.ones((300, 300))
    results = [x * number for number in range(20)]
    views = [result.asnumpy()[::7] for result in results]
    slices = [result[5:10] for result in results]
    del results
    for _ in range(30):
        (x + 100).wait_to_read()
    for number, (view, part) in enumerate(zip(views, slices, strict=True)):
        assert (view == number).all()
        assert (part.asnumpy() == number).all()


def test_empty_cache():
    (mx.nd.ones((600, 600)) + 1).wait_to_read()
    gc.collect()
    assert cpu_pool._pool is not None
    mx.cpu().empty_cache()
    assert cpu_pool._pool.idle_bytes == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="for systems with fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_writes_to_separate_memory(small):
    array = big(small)
    array.fill(1)
    child = os.fork()
    if child == 0:
        array.fill(2)
        os._exit(0 if (array == 2).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (array == 1).all()


def test_an_array_that_does_not_fit_names_its_size_and_leaves_the_pool_as_it_was(monkeypatch):
    pool = Pool(limit=16 * MIB)
    first = pool.array((MIN_BYTES,), np.dtype(np.uint8))

    def refuse(size):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(cpu_pool, "_map", refuse)
    used = pool.used_bytes
    with pytest.raises(
        mx.errors.OutOfMemory, match=r"shape \(1000000, 1000000\) and dtype float32 needs 4000000000000 bytes"
    ):
        pool.array((10**6, 10**6), np.dtype(np.float32))
    assert pool.used_bytes == used and pool._peak == used and first.size == MIN_BYTES
