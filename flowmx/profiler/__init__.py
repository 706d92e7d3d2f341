"""``mx.profiler``: records the time, device, layer and source line of operations, as a trace and as tables.

Example:
    >>> mx.profiler.set_config(filename="profile.json")
    >>> mx.profiler.set_state("run")
    >>> train()
    >>> mx.profiler.set_state("stop")
    >>> print(mx.profiler.dumps(by="layer"))
    >>> mx.profiler.dump()      # for https://ui.perfetto.dev or chrome://tracing

The profiler records operations pushed while it runs, the single operators of bound and hybridized graphs, the memory in
use, and requests to KVStore servers. It costs nothing while it does not run.
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
from flowmx.profiler.user_objects import Counter, Domain, Event, Frame, Marker, Task, scope

__all__ = [
    "Counter", "Domain", "Event", "Frame", "Marker", "Task", "dump", "dump_profile", "dump_tensorboard", "dumps",
    "get_summary", "pause", "profiler_set_config", "profiler_set_state", "resume", "scope", "set_config",
    "set_kvstore_handle", "set_state",
]  # fmt: skip
