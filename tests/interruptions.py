"""Run code at each moment at which the interpreter may run other code on the same thread.

CPython runs signal handlers, and raises their exceptions, after a call has returned, at the start of a function and of
each loop iteration. A garbage collection, whose finalizers may run any code, may also start there, and until 3.11
wherever an object is created that the collector tracks.
"""

import dis
import sys

AFTER = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD"}
BEFORE = {
    "BUILD_LIST", "BUILD_MAP", "BUILD_SET", "BUILD_TUPLE", "GET_ITER", "LIST_EXTEND", "LOAD_CLOSURE", "MAKE_CELL",
    "MAKE_FUNCTION",
}  # fmt: skip


def strike(work, moment, files, blow):
    """Run a function on this thread, and call ``blow()`` at the n-th moment (from 0) inside functions of some files.

    Returns:
        Whether the moment occurred. Exceptions of ``blow`` are raised from the interrupted code.
    """
    left = [moment]
    before: dict[int, int] = {}

    def trace(frame, event, argument):
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "call" or (event == "opcode" and _is_moment(frame, before)):
            left[0] -= 1
            if left[0] == -1:
                sys.settrace(None)
                blow()
        if event == "return":
            before.pop(id(frame), None)
        return trace

    outer = sys.gettrace()
    try:
        sys.settrace(trace)
        work()
    finally:
        sys.settrace(outer)
    return left[0] < 0


def _is_moment(frame, before):
    """Return whether other code may run before the next opcode.

    None is where a handler starts: a call that raised runs no other code, and an exception that is raised there stays
    with the thread.
    """
    code = frame.f_code.co_code
    at = frame.f_lasti
    last = before.get(id(frame))
    before[id(frame)] = at
    if dis.opname[code[at]] == "PUSH_EXC_INFO":
        return False
    return dis.opname[code[at]] in BEFORE or (last is not None and dis.opname[code[last]] in AFTER)
