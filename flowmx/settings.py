"""Settings: the only place where flowmx reads environment variables.

A field of `Settings` is a setting. Its annotation is the type, `_setting` adds the default, the range and the
documentation, and the variable is ``FLOWMX_`` plus the upper-case name of the field. ``python -m flowmx info`` prints
all settings.

If the variable is unset, MXNet's variable is used: ``MXNET_`` plus the same name, or the name in `_MXNET_NAMES`. If
that is unset too, variables of other programs may be used: `others` is a format string of variables, such as
``"{DMLC_PS_ROOT_URI}:{DMLC_PS_ROOT_PORT}"``, which applies if all of them are set.

The environment is read once, at the first `get`; a program that changes it later calls `reload`.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from string import Formatter
from types import MappingProxyType, NoneType
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from flowmx.suggestions import did_you_mean, nearest

__all__ = [
    "TABLE", "Agreement", "BlockingInLoop", "DamagedImages", "EngineType", "Policy", "PoolType", "Role", "Setting",
    "SettingError", "Settings", "Traces", "fresh", "get", "load", "mxnet_variables", "override", "reload", "sources",
]  # fmt: skip

PREFIX = "FLOWMX_"
MXNET_PREFIX = "MXNET_"
_MXNET_NAMES = {"cuda_graphs": "MXNET_ENABLE_CUDA_GRAPHS"}
"""Settings with another name in MXNet."""

EngineType = Literal["NaiveEngine", "ThreadedEngine", "ThreadedEnginePerDevice"]
PoolType = Literal["Naive", "Round", "Unpooled"]
BlockingInLoop = Literal["warn", "error", "allow"]
Tracebacks = Literal["folded", "full"]
DamagedImages = Literal["decode", "raise", "skip"]
Policy = Literal["stop", "elastic"]
Agreement = Literal["error", "warn"]
Role = Literal["worker", "server", "scheduler"]
Traces = Literal["off", "requests", "operators"]

T = TypeVar("T")


class SettingError(ValueError):
    """The value of a setting is invalid."""


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)  # "1e6", as in MXNet's documentation
        if not number.is_integer():
            raise
        return int(number)


_BOOLEANS = {"0": False, "1": True, "false": False, "true": True}
_PARSERS: dict[type, Callable[[str], Any]] = {
    bool: lambda text: _BOOLEANS[text.lower()],
    int: _integer,
    float: float,
    str: str,
}
_KINDS = {bool: "0, 1, true or false", int: "an int", float: "a number", str: "text"}


class Setting(NamedTuple):
    """An entry of the table of settings: name, type, default, documentation, and allowed values."""

    name: str
    kind: type
    default: object
    doc: str
    choices: tuple[object, ...] = ()
    aliases: Mapping[str, str] = MappingProxyType({})
    low: float | None = None
    high: float | None = None
    others: str = ""

    @property
    def variable(self) -> str:
        """The environment variable, such as ``FLOWMX_ENGINE_TYPE``."""
        return PREFIX + self.name.upper()

    @property
    def mxnet_variable(self) -> str:
        """MXNet's environment variable, such as ``MXNET_ENGINE_TYPE``."""
        return _MXNET_NAMES.get(self.name, MXNET_PREFIX + self.name.upper())

    @property
    def other_variables(self) -> tuple[str, ...]:
        """Variables of other programs that apply if this one is unset."""
        return tuple(name for _, name, _, _ in Formatter().parse(self.others) if name)

    def find(self, environ: Mapping[str, str]) -> tuple[str, str]:
        """Return the text of the setting in `environ` (empty if unset), and the variables that it comes from."""
        for variable in (self.variable, self.mxnet_variable):
            if text := environ.get(variable, "").strip():
                return text, variable
        texts = {name: environ.get(name, "").strip() for name in self.other_variables}
        if not texts or not all(texts.values()):
            return "", self.variable
        return self.others.format_map(texts), " and ".join(texts)

    @property
    def allowed(self) -> str:
        """Description of the allowed values."""
        if self.choices:
            return "one of " + ", ".join(map(str, [*self.choices, *self.aliases]))
        bounds = {
            (False, False): "",
            (True, False): f" of at least {self.low}",
            (False, True): f" of at most {self.high}",
            (True, True): f" from {self.low} to {self.high}",
        }
        words = [_KINDS[self.kind] + bounds[self.low is not None, self.high is not None], *self.aliases]
        return " or ".join(words)

    def parse(self, text: str, variable: str = "") -> object:
        """Parse the text of an environment variable.

        Args:
            text: the text.
            variable: the variable, if it is not the setting's.

        Raises:
            SettingError: the value is invalid.
        """
        text = text.strip()
        try:
            value = _PARSERS[self.kind](self.aliases.get(text, text))
        except (KeyError, ValueError):
            raise self._error(text, variable) from None
        if not self._within(value):
            raise self._error(text, variable)
        return value

    def check(self, value: object) -> object:
        """Validate a value, and return it with aliases resolved.

        Raises:
            SettingError: the value has a different type, is out of range, or is not one of the choices.
        """
        if value is None and self.default is None:
            return value
        if self.kind is float and type(value) is int:
            value = float(value)
        if isinstance(value, str) and value in self.aliases:
            value = _PARSERS[self.kind](self.aliases[value])
        if type(value) is not self.kind or not self._within(value):
            raise self._error(value)
        return value

    def _within(self, value: Any) -> bool:
        # These comparisons are false for NaN, which is therefore out of every range.
        return (
            (not self.choices or value in self.choices)
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
        )

    def _error(self, value: object, variable: str = "") -> SettingError:
        default = "" if self.default in (None, "") else f" The default is {self.default}."
        return SettingError(f"{variable or self.variable} is {value!r}, expected {self.allowed}.{default}")


def _setting(
    default: T,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    aliases: Mapping[str, str] | None = None,
    others: str = "",
) -> T:
    """Declare a field of `Settings`. The return type is the default's, so that mypy compares it with the annotation."""
    metadata = {"doc": doc, "low": low, "high": high, "aliases": aliases or {}, "others": others}
    declared: T = field(default=default, metadata=metadata)
    return declared


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The value of every setting."""

    # Threads
    gpu_worker_nthreads: int = _setting(2, "Maximum number of operations that run in parallel on a GPU.", low=1)
    gpu_copy_nthreads: int = _setting(1, "Maximum number of parallel copies to or from a GPU.", low=1)
    cpu_worker_nthreads: int = _setting(1, "Maximum number of operations that run in parallel on a CPU device.", low=1)
    cpu_priority_nthreads: int = _setting(4, "Threads reserved for CPU operations with a priority.", low=1)
    cpu_nnpack_nthreads: int = _setting(4, "Maximum number of threads of a convolution on the CPU.", low=1)
    cpu_kernel_nthreads: int = _setting(
        0, "Threads shared by BLAS, oneDNN and the fused kernels on the CPU; 0: all cores.", low=0
    )

    # Memory
    exec_enable_inplace: bool = _setting(
        True, "Let a bound symbol's operations overwrite inputs that are no longer needed."
    )
    exec_match_range: int = _setting(
        10,
        "Maximum size ratio of arrays of a bound symbol that share memory; 0: no sharing.",
        low=0,
    )
    exec_memory_budget: int = _setting(
        0,
        "Memory budget for a bound symbol's internal values in bytes. Values are recomputed, or the batch is processed "
        "in slices, to stay within it; 0: unlimited.",
        low=0,
    )
    exec_slice: int = _setting(
        -1,
        "Samples per slice of a batch in bound predictions, if the layers allow slicing: auto (-1) reduces the memory "
        "to a quarter if the estimated cost is low, and on a GPU if the batch does not fit; off (0) disables slicing; "
        "or a number.",
        low=-1,
        aliases={"auto": "-1", "off": "0"},
    )
    subgraph_backend: str = _setting(
        "", "The partitioner applied to graphs when they are bound; unset or NONE: no partitioner."
    )
    exec_num_temp: int = _setting(1, "Maximum number of temporary workspaces per device.", low=1)
    onednn_library: str = _setting(
        "",
        "File or folder of oneDNN's libdnnl.so.3; unset: search the environment, the user's packages, sys.path and the "
        "dynamic linker's folders; 0: do not use oneDNN.",
    )
    native_runs: bool = _setting(True, "Run the steps of a graph on a CPU in few native calls.")
    exec_check: bool = _setting(False, "Overwrite unused memory of bound symbols, to detect wrong sharing; slow.")
    cuda_graphs: bool = _setting(False, "Capture the steps of bound graphs on a GPU as CUDA graphs.")
    gpu_mem_pool_reserve: int = _setting(
        5, "Percentage of GPU memory reserved for uses other than arrays.", low=0, high=100
    )
    gpu_mem_pool_type: PoolType = _setting(
        "Naive",
        "Block sizes of the GPU memory pool: exact, rounded to reuse blocks for varying shapes, or no pool.",
    )
    gpu_mem_pool_round_linear_cutoff: int = _setting(
        24,
        "The Round pool rounds sizes below 2**N bytes to powers of two, and larger sizes to multiples of 2**N bytes.",
        low=20,
        high=34,
    )
    cpu_mem_pool_limit: int = _setting(
        1024, "Maximum MiB of freed CPU memory that are cached for new arrays; 0: no cache.", low=0
    )

    graph_cache: int = _setting(
        1024,
        "Maximum MiB of all compiled graphs of hybridized blocks and modules together; single kernels may take another "
        "quarter. Above the limit graphs are dropped, and recompiled when needed; each block keeps its last 16 graphs.",
        low=0,
    )

    # Kernels
    kernel_cache: str = _setting("", "Folder of compiled kernels and plans; unset: flowmx/kernels in the user's cache.")
    exec_plan_cache: bool = _setting(True, "Cache the plans of large graphs in the folder FLOWMX_KERNEL_CACHE.")

    # Engine
    engine_type: EngineType = _setting(
        "ThreadedEnginePerDevice",
        "The threads that run operations: the pushing thread (for debugging), one thread pool, or a pool per device.",
        aliases={"ThreadedEnginePooled": "ThreadedEngine"},
    )
    engine_max_ops: int = _setting(4096, "Maximum number of pending operations; further pushes wait.", low=1)
    engine_max_bytes: int = _setting(1 << 30, "Maximum bytes of pending results; further pushes wait.", low=1)
    engine_check: bool = _setting(False, "Detect operations that write variables declared as read-only; slow.")
    blocking_in_loop: BlockingInLoop = _setting(
        "warn", "Behavior of a blocking read inside a coroutine: warn and block, raise an error, or block."
    )
    storage_fallback_log_verbose: bool = _setting(
        True,
        "Warn once per line if sparse arrays are converted to dense ones for an operator without a sparse "
        "implementation.",
    )
    exit_timeout: float = _setting(5.0, "Seconds that the interpreter waits for pending operations at exit.", low=0)
    exit_fails: bool = _setting(True, "Exit with status 1 if an operation failed and its result was never read.")
    tracebacks: Tracebacks = _setting(
        "folded", "Fold the frames of flowmx in the traceback that ends a program, or show it in full."
    )
    unsaved_timeout: float = _setting(
        1800.0,
        "Seconds that a program continues while its checkpoints or snapshots cannot be written; then it fails.",
        low=0,
    )
    leave_timeout: float = _setting(
        20.0,
        "Seconds after SIGTERM for a program to finish its step, write its checkpoint and leave its job.",
        low=0,
    )
    switch_interval: float = _setting(
        0.001,
        "Switch interval of the interpreter in seconds; short intervals keep event loops responsive; 0: unchanged.",
        low=0,
    )
    uvloop: bool = _setting(True, "Use uvloop in flowmx.run if it is installed.")

    # Data
    damaged_images: DamagedImages = _setting(
        "decode",
        "Handling of truncated or damaged JPEG files: decode the readable part, raise an error, or skip the image in "
        "iterators and loaders, which then also skip files that are not images.",
    )

    # Communication
    kvstore_reduction_nthreads: int = _setting(4, "Threads that sum large arrays on the CPU.", low=1)
    kvstore_bigarray_bound: int = _setting(
        1_000_000,
        "Number of elements above which an array is large: summed by several threads, and sharded over servers.",
        low=1,
    )
    kvstore_reduce_bucket_size: int = _setting(
        2048, "Size in KiB of buckets of small arrays that are sent and summed together; 0: no buckets.", low=0
    )
    update_on_kvstore: bool = _setting(True, "Let the KVStore update weights, once for all devices, if it can.")
    kvstore_policy: Policy = _setting(
        "stop",
        "Behavior of a job that loses a node: stop and report it, or continue and let another node take its place.",
    )
    kvstore_agreement: Agreement = _setting(
        "error",
        "Behavior of a worker whose versions, seed, shapes or settings differ from those of the others when it starts.",
    )
    kvstore_patience: float = _setting(
        10.0, "Seconds of waiting for other workers after which the wait is logged.", low=0.05
    )
    kvstore_heartbeat: float = _setting(1.0, "Seconds between heartbeats of a node.", low=0.01)
    kvstore_timeout: float = _setting(10.0, "Seconds without a heartbeat after which a node is lost.", low=0.05)
    kvstore_busy: float = _setting(
        600.0, "Seconds for which a node whose process runs may be too busy to send heartbeats.", low=0
    )
    kvstore_no_workers: float = _setting(
        600.0, "Seconds that an elastic job without workers waits for one to return.", low=0
    )
    kvstore_replicas: int = _setting(
        1,
        "Number of other servers that store a value before its push is acknowledged; 0 is faster, but loses the values "
        "of a server that fails.",
        low=0,
        high=1,
    )
    kvstore_reconnect: float = _setting(
        30.0, "Seconds that nodes continue without the scheduler while they try to reconnect.", low=0
    )
    kvstore_scheduler_returns: bool = _setting(
        True,
        "Try to reconnect to a scheduler that has exited, because it may be restarted; otherwise nodes exit a few "
        "seconds after it. Launchers set it to false for jobs that stop when a node is lost.",
    )
    kvstore_local: bool = _setting(True, "Use unix sockets and shared memory between nodes of one machine.")
    kvstore_streams: bool = _setting(
        True,
        "Multiplex small calls between nodes over one connection, and let workers read rows from the memory of "
        "servers on their machine.",
    )
    enable_gpu_p2p: bool = _setting(True, "Copy directly between GPUs if they support it.")

    # Limits on received data
    job_limits: str = _setting(
        "", "Limits of a job's nodes that differ from docs/operations.md, such as peers=8192,total=1e9."
    )
    serve_limits: str = _setting("", "Limits of a model service, in the format of FLOWMX_JOB_LIMITS.")
    dashboard_limits: str = _setting("", "Limits of the dashboard, in the format of FLOWMX_JOB_LIMITS.")

    # The distributed job that this process belongs to
    scheduler: str = _setting(
        "",
        "Address of the scheduler, such as 127.0.0.1:9091; unset: the process is not part of a job.",
        others="{DMLC_PS_ROOT_URI}:{DMLC_PS_ROOT_PORT}",
    )
    job: str = _setting(
        "",
        "Name of the job and of its attempt, the same for the scheduler and all nodes; a scheduler rejects nodes "
        "of other jobs.",
    )
    role: Role = _setting("worker", "Role of this process in its job.", others="{DMLC_ROLE}")
    rank: int | None = _setting(None, "The requested rank; unset: any free rank.", low=0, others="{DMLC_WORKER_ID}")
    num_workers: int = _setting(1, "Number of workers of the job.", low=1, others="{DMLC_NUM_WORKER}")
    num_servers: int = _setting(1, "Number of servers of the job.", low=0, others="{DMLC_NUM_SERVER}")
    node_id: str = _setting("", "Unique name of this node; unset: a generated name.")
    node_host: str = _setting(
        "127.0.0.1", "Address at which the job's other nodes reach this machine.", others="{DMLC_NODE_HOST}"
    )
    node_address: str = _setting(
        "",
        "Address at which other nodes reach this server, if it differs from the listening address (proxy, container).",
    )
    secret_file: str = _setting("", "File with the shared secret of the job's nodes; unset: no secret.")
    tls_cert: str = _setting("", "PEM file of this node's certificate, for mutual TLS; unset: no TLS.")
    tls_key: str = _setting("", "PEM file of the private key of FLOWMX_TLS_CERT.")
    tls_ca: str = _setting("", "PEM file of the CA that signed the certificates of the job's nodes.")
    tls_check_hostname: bool = _setting(True, "Verify that a node's certificate is valid for its address.")
    kvstore_import: str = _setting(
        "", "Comma-separated modules that servers import at start; they define optimizers and schedules."
    )
    snapshot: str = _setting("", "File or folder of the snapshot from which this scheduler or server resumes.")

    # Recomputing, profiling, tuning, random numbers
    stop_at_nan: bool = _setting(
        False, "Stop at the first computed NaN or infinity, and report its operator, layer and step."
    )
    flight_recorder: bool = _setting(
        True, "Record recent operations, waits and messages in memory, and respond to `python -m flowmx doctor`."
    )
    dashboard: int | None = _setting(
        None,
        "Port of the dashboard on 127.0.0.1, which starts with the first operation; another port if it is in use; "
        "0: any free port; unset: no dashboard.",
        low=0,
        high=65535,
    )
    stall_seconds: float = _setting(
        300.0,
        "Seconds without a completed operation, while some are pending, after which a report is written.",
        low=0,
    )
    runtime_folder: str = _setting(
        "",
        "Folder for sockets and reports of processes; unset: flowmx-<user> in the folder for temporary files.",
        others="{XDG_RUNTIME_DIR}",
    )
    home: str = _setting("", "Folder of models and datasets; unset: .mxnet in the home folder.")
    gluon_repo: str = _setting(
        "https://apache-mxnet.s3-accelerate.dualstack.amazonaws.com/", "URL of MXNet's models and datasets."
    )
    backward_bulks: bool = _setting(
        True, "Run small gradients of the tape in bulk, as one operation of the engine, which is faster."
    )
    eliminate_common_expr: bool = _setting(True, "Eliminate common subexpressions of graphs.")
    backward_do_mirror: bool = _setting(False, "Recompute cheap results in the backward pass to save memory.")
    traces: Traces = _setting(
        "off",
        "OpenTelemetry spans of a service: off, requests and batches, or operators too; see docs/serving.md.",
    )
    profiler_autostart: bool = _setting(False, "Profile from the start, and write profile.json at exit.")
    profiler_mode: Literal[0, 1] = _setting(0, "Operators that are profiled; 0: those of symbols, 1: all.")
    cudnn_autotune_default: Literal[0, 1, 2] = _setting(
        0, "Default of a convolution's cudnn_tune: 0: off, 1: fastest within the workspace, 2: fastest."
    )
    cpu_autotune_default: Literal[0, 1, 2] = _setting(
        1,
        "Algorithm of convolutions with packed filters on a CPU: 0: direct, 1: the fastest with filters up to 64 MiB, "
        "2: the fastest, measured longer.",
    )
    cuda_allow_tensor_core: bool = _setting(
        True, "Let float32 convolutions on a GPU use tensor cores, which round their operands to TF32."
    )
    seed: int | None = _setting(None, "Seed of the random generators; unset: random.", low=0)


def _rows() -> Iterator[Setting]:
    for declared in fields(Settings):
        options = get_args(declared.type) if get_origin(declared.type) is Literal else ()
        kind = type(options[0]) if options else declared.type
        # `int | None`: None means unset and has no text form.
        kind = next((arm for arm in get_args(kind) if arm is not NoneType), kind)
        assert isinstance(kind, type), f"{declared.name}: {declared.type} is not a supported type of settings"
        yield Setting(name=declared.name, kind=kind, default=declared.default, choices=options, **declared.metadata)


TABLE: Mapping[str, Setting] = {row.name: row for row in _rows()}
"""Settings by name, in the order of `Settings`."""

_current: Settings | None = None
_sources: dict[str, str] = {}


def load(environ: Mapping[str, str]) -> Settings:
    """Read settings from a mapping of environment variables; an empty value counts as unset.

    Raises:
        SettingError: the value of a variable is invalid.
    """
    return Settings(**_read(environ)[0])


def get() -> Settings:
    """Return the current settings; the first call reads the environment.

    Raises:
        SettingError: as in `load`.
    """
    return _current if _current is not None else reload()


def fresh(name: str) -> Any:
    """Return a setting from the current environment, for settings that a program may change after its start.

    Raises:
        SettingError: as in `load`.
    """
    current = getattr(get(), name)
    if _sources.get(name) == "override":
        return current
    row = TABLE[name]
    text, variable = row.find(os.environ)
    return row.parse(text, variable) if text else row.default


def reload() -> Settings:
    """Read the environment again and return the settings.

    Warn about unknown variables that begin with ``FLOWMX_``.

    Raises:
        SettingError: as in `load`; the current settings are unchanged.
    """
    global _current, _sources
    values, origins = _read(os.environ)
    _current, _sources = Settings(**values), origins
    _warn_unknown(os.environ)
    return _current


@contextmanager
def override(**values: object) -> Iterator[Settings]:
    """Override settings in the context, in all threads and tasks; for tests.

    Raises:
        SettingError: a value is invalid.
        TypeError: a name is not a setting.
    """
    global _current, _sources
    for name in values:
        if name not in TABLE:
            raise TypeError(f"{name!r} is not a setting{did_you_mean(name, TABLE)}")
    entry = _Override(get(), _sources, {name: TABLE[name].check(value) for name, value in values.items()})
    _overrides.append(entry)
    try:
        _current, _sources = entry.applied(entry.settings, entry.sources)
        yield _current
    finally:
        # Contexts may exit in a different order than they entered: later ones stay in effect.
        later_entries = _overrides[_overrides.index(entry) + 1 :]
        _overrides.remove(entry)
        _current, _sources = entry.settings, entry.sources
        for later in later_entries:
            later.settings, later.sources = _current, _sources
            _current, _sources = later.applied(_current, _sources)


class _Override:
    """The values of an override, and the settings without them."""

    def __init__(self, settings: Settings, sources: dict[str, str], values: dict[str, Any]) -> None:
        self.settings, self.sources, self.values = settings, sources, values

    def applied(self, settings: Settings, sources: dict[str, str]) -> tuple[Settings, dict[str, str]]:
        """Return the settings and their sources with these values."""
        return replace(settings, **self.values), {**sources, **dict.fromkeys(self.values, "override")}


_overrides: list[_Override] = []
"""The active contexts of :func:`override`, in order of entry."""


def sources() -> dict[str, str]:
    """Return the sources of all settings: ``default``, ``environment`` or ``override``.

    If a value comes from variables of other programs, ``environment`` is followed by their names.
    """
    get()
    return {name: _sources.get(name, "default") for name in TABLE}


def mxnet_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the MXNet variables in `environ` that no setting reads."""
    read = {row.mxnet_variable for row in TABLE.values()}
    return [name for name in sorted(environ) if name.startswith(MXNET_PREFIX) and name not in read]


def _read(environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of the settings in `environ`, and their sources."""
    values, origins = {}, {}
    for name, row in TABLE.items():
        text, variable = row.find(environ)
        if text:
            values[name] = row.parse(text, variable)
            origins[name] = "environment" if variable == row.variable else f"environment: {variable}"
    return values, origins


_TYPO = 0.95
"""The similarity of a typing error; that of two variables of MXNet is lower."""


def _similar(variable: str, variables: Sequence[str]) -> str:
    """Return the end of a message with the most similar variable, of those with all words if there are any."""
    words = [word.rstrip("S") for word in variable.removeprefix(PREFIX).split("_")]
    matching = [name for name in variables if all(f"_{word}" in name for word in words)]
    return did_you_mean(variable, matching or variables)


def _warn_unknown(environ: Mapping[str, str]) -> None:
    variables = [row.variable for row in TABLE.values()]
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable not in variables:
            warnings.warn(
                f"the environment variable {variable} is not a setting of flowmx and is ignored"
                f"{_similar(variable, variables)}; `python -m flowmx info` lists the settings",
                stacklevel=3,
            )
    names = [row.mxnet_variable for row in TABLE.values()]
    for variable in mxnet_variables(environ):  # most are variables of MXNet that have no effect here
        if meant := nearest(variable, names, cutoff=_TYPO):
            warnings.warn(f"the environment variable {variable} is ignored; did you mean {meant!r}?", stacklevel=3)
