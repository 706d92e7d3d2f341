"""LeNet's training step with and without a viewer of the dashboard, in turns of some seconds.

A turn is as long as two diagnoses, one of which reads values. The viewer is a separate process, like a browser.
"""

import json
import statistics
import subprocess
import sys
import threading
import time

import profiling

import flowmx as mx

SECONDS, PAIRS = 4.1, 8

VIEWER = """
import socket, sys, threading
line = None
def drain(line):
    try:
        while line.recv(1 << 16):
            pass
    except OSError:
        pass
for text in sys.stdin:
    if line is not None:
        line.shutdown(socket.SHUT_RDWR)
        line = None
    if text.strip():
        line = socket.create_connection(("127.0.0.1", int(text)))
        line.sendall(b"GET /events HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n")
        threading.Thread(target=drain, args=(line,), daemon=True).start()
"""


def own_time():
    """Return the processor seconds of the dashboard's threads."""
    threads = [each for each in threading.enumerate() if each.name.startswith("flowmx-dashboard")]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(each.ident)) for each in threads)


def clocks():
    return time.perf_counter(), time.process_time(), own_time()


def turn(step):
    """Run steps for some seconds; return milliseconds a step of wall, processor and dashboard threads' time."""
    start, count = clocks(), 0
    while time.perf_counter() - start[0] < SECONDS:
        step()
        mx.nd.waitall()
        count += 1
    return [(end - begin) / count * 1e3 for end, begin in zip(clocks(), start, strict=True)]


def ratio(times, column):
    """Return the median of the ratios of consecutive turns."""
    pairs = zip(times["watched"], times["plain"], strict=True)
    return statistics.median(watched[column] / plain[column] for watched, plain in pairs)


def main():
    step = {"symbolic": profiling.symbolic, "gluon": lambda: profiling.block(True)}.get(
        profiling.KIND, lambda: profiling.block(False)
    )()
    with mx.dashboard.start() as dashboard:
        port = dashboard.url.rstrip("/").rpartition(":")[2]
        viewer = subprocess.Popen([sys.executable, "-c", VIEWER], stdin=subprocess.PIPE, text=True)
        times = {"plain": [], "watched": []}
        turn(step)
        for number in range(PAIRS):
            ways = list(times)
            for way in ways if number % 2 else reversed(ways):
                viewer.stdin.write(f"{port if way == 'watched' else ''}\n")
                viewer.stdin.flush()
                time.sleep(0.7)  # the last turn's observation ends
                times[way].append(turn(step))
        viewer.stdin.close()
        viewer.wait()
    figures = {f"{way}_ms": statistics.median(each[0] for each in turns) for way, turns in times.items()}
    own = statistics.median(watched[2] / watched[0] for watched in times["watched"])
    ratios = {"dashboard_ratio": ratio(times, 0), "dashboard_cpu_ratio": ratio(times, 1), "threads_of_a_core": own}
    print(json.dumps({**figures, **ratios}))


if __name__ == "__main__":
    main()
