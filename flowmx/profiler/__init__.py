"""``mx.profiler``: when each operation ran, where, for which layer and line, as a trace and as tables.

Example:
    >>> mx.profiler.set_config(filename="profile.json")
    >>> mx.profiler.set_state("run")
    >>> train()
    >>> mx.profiler.set_state("stop")
    >>> print(mx.profiler.dumps(by="layer"))
    >>> mx.profiler.dump()      # for https://ui.perfetto.dev or chrome://tracing

Recorded are the operations that are pushed while it runs, the operators of bound and hybridized graphs one by one, the
memory in use, and the requests to servers of a KVStore. While it does not run it costs nothing.
"""

from flowmx.profiler.control import (
    dump,
    dump_profile,
    dump_tensorboard,
    dumps,
    get_summary,
    pause,
    profiler_set_config,
    profiler_set_state,
    resume,
    set_config,
    set_kvstore_handle,
    set_state,
)
from flowmx.profiler.objects import Counter, Domain, Event, Frame, Marker, Task, scope

__all__ = [
    "Counter", "Domain", "Event", "Frame", "Marker", "Task", "dump", "dump_profile", "dump_tensorboard", "dumps",
    "get_summary", "pause", "profiler_set_config", "profiler_set_state", "resume", "scope", "set_config",
    "set_kvstore_handle", "set_state",
]  # fmt: skip
