"""Settings: the one place where flowmx reads its environment variables.

Each field of `Settings` is a setting: its annotation is the type, `_setting` adds the default, the range and
the documentation, and the variable is called ``FLOWMX_`` plus the field's name in capitals. ``python -m flowmx info``
prints them all.

Where a setting's own variable is unset, MXNet's counts: ``MXNET_`` plus the same name, or the one in `_MXNET_NAMES`.
Where that is unset too, another program's may stand for it: `others` is a format string of variables, such as
``"{DMLC_PS_ROOT_URI}:{DMLC_PS_ROOT_PORT}"``, which counts where all of them are set.

The environment is read once, at the first `get`; a program that changes it later calls `reload`.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from string import Formatter
from types import MappingProxyType, NoneType
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from flowmx.suggestions import did_you_mean

__all__ = [
    "TABLE", "Agreement", "BlockingInLoop", "EngineType", "Policy", "PoolType", "Role", "Setting", "SettingError",
    "Settings", "Traces", "fresh", "get", "load", "mxnet_variables", "override", "reload", "sources",
]  # fmt: skip

PREFIX = "FLOWMX_"
MXNET_PREFIX = "MXNET_"
_MXNET_NAMES = {"cuda_graphs": "MXNET_ENABLE_CUDA_GRAPHS"}
"""Settings that MXNet has under another name."""

EngineType = Literal["NaiveEngine", "ThreadedEngine", "ThreadedEnginePerDevice"]
PoolType = Literal["Naive", "Round", "Unpooled"]
BlockingInLoop = Literal["warn", "error", "allow"]
Tracebacks = Literal["folded", "full"]
Policy = Literal["stop", "elastic"]
Agreement = Literal["error", "warn"]
Role = Literal["worker", "server", "scheduler"]
Traces = Literal["off", "requests", "operators"]

T = TypeVar("T")


class SettingError(ValueError):
    """A setting was given a value that it does not take."""


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)  # "1e6", as MXNet's own documentation writes such a default
        if not number.is_integer():
            raise
        return int(number)


_BOOLEANS = {"0": False, "1": True, "false": False, "true": True}
_PARSERS: dict[type, Callable[[str], Any]] = {
    bool: lambda text: _BOOLEANS[text.lower()],
    int: _whole,
    float: float,
    str: str,
}
_KINDS = {bool: "0, 1, true or false", int: "an int", float: "a number", str: "text"}


class Setting(NamedTuple):
    """A row of the table of settings: name, type, default, description, and the values that it takes."""

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
        """MXNet's variable for it, such as ``MXNET_ENGINE_TYPE``."""
        return _MXNET_NAMES.get(self.name, MXNET_PREFIX + self.name.upper())

    @property
    def other_variables(self) -> tuple[str, ...]:
        """The variables of other programs that stand for this one where it is unset."""
        return tuple(name for _, name, _, _ in Formatter().parse(self.others) if name)

    def find(self, environ: Mapping[str, str]) -> tuple[str, str]:
        """Return what `environ` says of the setting, as text (empty where it is unset), and which variables say it."""
        for variable in (self.variable, self.mxnet_variable):
            if own := environ.get(variable, "").strip():
                return own, variable
        texts = {name: environ.get(name, "").strip() for name in self.other_variables}
        if not texts or not all(texts.values()):
            return "", self.variable
        return self.others.format_map(texts), " and ".join(texts)

    @property
    def allowed(self) -> str:
        """The values that the setting takes, in words."""
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
        """Return the value that `text`, as found in the environment, stands for.

        Args:
            text: the given text.
            variable: where, if not in the setting's own variable.

        Raises:
            SettingError: `text` is not a value of this setting.
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
        """Return `value` if the setting takes it, or what it stands for.

        Raises:
            SettingError: It is of another type, outside the range, or none of the choices.
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
        # Written so that NaN, which compares false with everything, is outside every range.
        return (
            (not self.choices or value in self.choices)
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
        )

    def _error(self, given: object, variable: str = "") -> SettingError:
        default = "" if self.default in (None, "") else f" The default is {self.default}."
        return SettingError(f"{variable or self.variable} was given {given!r}; it takes {self.allowed}.{default}")


def _setting(
    default: T,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    aliases: Mapping[str, str] | None = None,
    others: str = "",
) -> T:
    """Declare a field of `Settings`; typed as its default, so that mypy compares the two."""
    metadata = {"doc": doc, "low": low, "high": high, "aliases": aliases or {}, "others": others}
    declared: Any = field(default=default, metadata=metadata)
    return declared  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The value of every setting."""

    # Threads
    gpu_worker_nthreads: int = _setting(2, "Most operations that compute at once on each GPU.", low=1)
    gpu_copy_nthreads: int = _setting(1, "Most copies at once to or from each GPU.", low=1)
    cpu_worker_nthreads: int = _setting(1, "Most operations that compute at once on each CPU device.", low=1)
    cpu_priority_nthreads: int = _setting(4, "Threads kept for CPU operations pushed with a priority.", low=1)
    cpu_nnpack_nthreads: int = _setting(4, "Most threads that one convolution on the CPU uses.", low=1)
    cpu_kernel_nthreads: int = _setting(
        0, "Threads that BLAS, oneDNN and the fused kernels share on the CPU; 0 takes every core.", low=0
    )

    # Memory
    exec_enable_inplace: bool = _setting(True, "Let a bound symbol's operations write over inputs that are done with.")
    exec_match_range: int = _setting(
        10,
        "How far in size two arrays of a bound symbol may differ and still share memory; 0 shares none.",
        low=0,
    )
    exec_memory_budget: int = _setting(
        0,
        "Most bytes of a bound symbol's internal values, for which as much as needed is recomputed, or parts of "
        "the batch go one after the other; 0 is any number.",
        low=0,
    )
    exec_slice: int = _setting(
        -1,
        "Examples of a batch that bound predictions take at a time, where layers allow it: auto (-1) for a quarter of "
        "the memory where that is estimated to cost little time, on a GPU where there is no room for all of them; off "
        "(0) for all of them, or a number.",
        low=-1,
        aliases={"auto": "-1", "off": "0"},
    )
    subgraph_backend: str = _setting(
        "", "The partitioner that changes graphs when they are bound; unset or NONE, they are bound as they are."
    )
    exec_num_temp: int = _setting(1, "Most temporary workspaces on each device.", low=1)
    exec_check: bool = _setting(
        False, "Overwrite memory of bound symbols that holds no value, so that wrong sharing shows; slow."
    )
    cuda_graphs: bool = _setting(
        False, "Capture the steps of bound graphs on a GPU, and launch them as one from then on."
    )
    gpu_mem_pool_reserve: int = _setting(5, "Percent of GPU memory left to everything but arrays.", low=0, high=100)
    gpu_mem_pool_type: PoolType = _setting(
        "Naive",
        "How the pool of GPU memory sizes blocks: exactly, rounded so that varying shapes fit, or no pool.",
    )
    gpu_mem_pool_round_linear_cutoff: int = _setting(
        24,
        "The Round pool rounds to powers of two below 2 to this power in bytes, to multiples of it above.",
        low=20,
        high=34,
    )
    cpu_mem_pool_limit: int = _setting(
        1024, "MiB of freed CPU memory that are kept for new arrays; 0 gives all back at once.", low=0
    )

    # Kernels
    kernel_cache: str = _setting("", "Folder of compiled kernels and plans; unset, flowmx/kernels in the user's cache.")
    exec_plan_cache: bool = _setting(True, "Keep the plans of big graphs in that folder.")

    # Engine
    engine_type: EngineType = _setting(
        "ThreadedEnginePerDevice",
        "Who runs operations: the thread that pushes (to debug), one pool of threads, or each device's own.",
        aliases={"ThreadedEnginePooled": "ThreadedEngine"},
    )
    engine_max_ops: int = _setting(4096, "Most operations in flight before a push waits its turn.", low=1)
    engine_max_bytes: int = _setting(1 << 30, "Most bytes of results in flight before a push waits its turn.", low=1)
    engine_check: bool = _setting(False, "Catch operations that write what they declared as read; slow.")
    blocking_in_loop: BlockingInLoop = _setting(
        "warn", "What a read that would block inside a coroutine does: warn and block, raise, or block."
    )
    storage_fallback_log_verbose: bool = _setting(
        True, "Warn, once a line, where sparse arrays are made dense for an operator that has no way for them."
    )
    exit_timeout: float = _setting(5.0, "Seconds that leaving the interpreter waits for pending work.", low=0)
    exit_fails: bool = _setting(True, "End a program with status 1 where an operation failed and nobody waited for it.")
    tracebacks: Tracebacks = _setting(
        "folded", "Fold the frames of flowmx itself in the traceback that ends a program, or show it in full."
    )
    unsaved_timeout: float = _setting(
        1800.0,
        "Seconds that a program goes on while its checkpoints or snapshots can not be written; then it fails.",
        low=0,
    )
    leave_timeout: float = _setting(
        20.0,
        "Seconds that SIGTERM leaves a program to finish its step, write its checkpoint and leave its job.",
        low=0,
    )
    switch_interval: float = _setting(
        0.001,
        "Seconds between thread switches of the interpreter; short keeps event loops prompt, 0 leaves it be.",
        low=0,
    )
    uvloop: bool = _setting(True, "Let flowmx.run use uvloop where it is installed.")

    # Communication
    kvstore_reduction_nthreads: int = _setting(4, "Threads that sum big arrays on the CPU.", low=1)
    kvstore_bigarray_bound: int = _setting(
        1_000_000,
        "Elements from which an array is big: summed by several threads and split over servers.",
        low=1,
    )
    kvstore_reduce_bucket_size: int = _setting(
        2048, "KiB of small arrays that are sent and summed together; 0 sends each by itself.", low=0
    )
    update_on_kvstore: bool = _setting(True, "Let the KVStore update weights where it can, once for all devices.")
    kvstore_policy: Policy = _setting(
        "stop", "What a job does that loses a node: stop and say which, or go on and let another take its place."
    )
    kvstore_agreement: Agreement = _setting(
        "error", "What a worker does at its start that differs from the others in versions, seed, shapes or settings."
    )
    kvstore_heartbeat: float = _setting(1.0, "Seconds between the signs of life of a node.", low=0.01)
    kvstore_timeout: float = _setting(10.0, "Seconds of silence after which a node is gone.", low=0.05)
    kvstore_busy: float = _setting(
        600.0, "Seconds for which a node whose process runs may be too busy to say anything itself.", low=0
    )
    kvstore_deserted: float = _setting(
        600.0, "Seconds for which an elastic job whose workers are all gone waits for one to come back.", low=0
    )
    kvstore_replicas: int = _setting(
        1,
        "Other servers that have each value before a push is answered, where there are others; 0 takes less time and "
        "loses what a server had that dies.",
        low=0,
        high=1,
    )
    kvstore_reconnect: float = _setting(30.0, "Seconds that nodes go on without the scheduler, looking for it.", low=0)
    kvstore_scheduler_returns: bool = _setting(
        True,
        "Look for a scheduler that has ended, as it may be started again; where not, nodes end a few seconds after it. "
        "Launchers say so of jobs that stop where a node is lost.",
    )
    kvstore_local: bool = _setting(True, "Let nodes of one machine talk by unix sockets and shared memory.")
    kvstore_streams: bool = _setting(
        True,
        "Let small calls between nodes share a connection, and workers read rows from the memory of servers of their "
        "machine.",
    )
    enable_gpu_p2p: bool = _setting(True, "Let GPUs copy to each other directly where they can.")

    # What peers and strangers may send
    job_limits: str = _setting(
        "", "Limits of a job's nodes other than those of docs/operations.md, such as peers=8192,total=1e9."
    )
    serve_limits: str = _setting("", "Limits of a service of models, written likewise.")
    dashboard_limits: str = _setting("", "Limits of the dashboard, written likewise.")

    # The distributed job that this process belongs to
    scheduler: str = _setting(
        "",
        "Address of the scheduler, such as 127.0.0.1:9091; unset, this process belongs to no job.",
        others="{DMLC_PS_ROOT_URI}:{DMLC_PS_ROOT_PORT}",
    )
    role: Role = _setting("worker", "What this process is in its job.", others="{DMLC_ROLE}")
    rank: int | None = _setting(None, "The rank to ask for; unset, any that is free.", low=0, others="{DMLC_WORKER_ID}")
    num_workers: int = _setting(1, "Workers of the job.", low=1, others="{DMLC_NUM_WORKER}")
    num_servers: int = _setting(1, "Servers of the job.", low=0, others="{DMLC_NUM_SERVER}")
    node_id: str = _setting("", "This node's name for itself, other than all others'; unset, it makes one up.")
    node_host: str = _setting(
        "127.0.0.1", "The address of this machine on which the job's other nodes reach it.", others="{DMLC_NODE_HOST}"
    )
    node_address: str = _setting(
        "", "Where the job's other nodes reach this server, where that is not where it listens (a proxy, a container)."
    )
    secret_file: str = _setting("", "File with the secret that all nodes of the job share; unset, there is none.")
    tls_cert: str = _setting("", "PEM file of this node's certificate, for mutual TLS; unset, there is none.")
    tls_key: str = _setting("", "PEM file of the private key of FLOWMX_TLS_CERT.")
    tls_ca: str = _setting("", "PEM file of the authority that the certificates of all nodes of the job descend from.")
    tls_check_hostname: bool = _setting(
        True, "Expect a node's certificate to be made out to the address that it is called by."
    )
    snapshot: str = _setting("", "File or folder from which this scheduler or server goes on when it starts anew.")

    # Recomputing, profiling, tuning, random numbers
    stop_at_nan: bool = _setting(
        False, "Stop at the first NaN or infinity that is computed, and name operator, layer and step."
    )
    flight_recorder: bool = _setting(
        True, "Keep the last operations, waits and messages in memory, and answer `python -m flowmx doctor`."
    )
    dashboard: int | None = _setting(
        None,
        "Port of 127.0.0.1 on which the dashboard is served from the first operation on, or another where that is "
        "taken; 0 takes any that is free; unset, there is none.",
        low=0,
        high=65535,
    )
    stall_seconds: float = _setting(
        300.0,
        "Seconds without the end of an operation, while some are pending, after which a report is written.",
        low=0,
    )
    runtime_folder: str = _setting(
        "",
        "Folder for sockets and reports of processes; unset, flowmx-<user> in the folder for temporary files.",
        others="{XDG_RUNTIME_DIR}",
    )
    home: str = _setting("", "Folder of models and data sets, in folders of their own; unset, .mxnet in your home.")
    gluon_repo: str = _setting(
        "https://apache-mxnet.s3-accelerate.dualstack.amazonaws.com/", "Address of MXNet's models and data sets."
    )
    backward_bulks: bool = _setting(
        True, "Run many small gradients of the tape as one operation of the engine, which is faster."
    )
    eliminate_common_expr: bool = _setting(True, "Compute once what several nodes of a graph would.")
    backward_do_mirror: bool = _setting(False, "Recompute cheap results in the backward pass to save memory.")
    traces: Traces = _setting(
        "off",
        "OpenTelemetry spans of a service: none, of requests and batches, or of operators too; see docs/serving.md.",
    )
    profiler_autostart: bool = _setting(False, "Profile from the start and write profile.json at the end.")
    profiler_mode: Literal[0, 1] = _setting(0, "What is profiled: 0 symbolic operators, 1 all operators.")
    cudnn_autotune_default: Literal[0, 1, 2] = _setting(
        0, "The default of a convolution's cudnn_tune: 0 off, 1 fastest within the workspace, 2 fastest."
    )
    cuda_allow_tensor_core: bool = _setting(
        True, "Let float32 convolutions on a GPU use tensor cores, which round their operands to TF32."
    )
    seed: int | None = _setting(None, "Seed of the random generators; unset, they start from fresh entropy.", low=0)


def _rows() -> Iterator[Setting]:
    for declared in fields(Settings):
        options = get_args(declared.type) if get_origin(declared.type) is Literal else ()
        kind = type(options[0]) if options else declared.type
        # `int | None`: None is the state of being unset, and no text stands for it.
        kind = next((arm for arm in get_args(kind) if arm is not NoneType), kind)
        assert isinstance(kind, type), f"{declared.name}: {declared.type} is no type that a setting can have"
        yield Setting(name=declared.name, kind=kind, default=declared.default, choices=options, **declared.metadata)


TABLE: Mapping[str, Setting] = {row.name: row for row in _rows()}
"""Every setting by its name, in the order of `Settings`."""

_current: Settings | None = None
_sources: dict[str, str] = {}


def load(environ: Mapping[str, str]) -> Settings:
    """Read settings from a mapping of environment variables; an empty value counts as unset.

    Raises:
        SettingError: A variable holds a value that its setting does not take.
    """
    return Settings(**_given(environ)[0])


def get() -> Settings:
    """Return the settings in force, reading the environment the first time.

    Raises:
        SettingError: As in `load`.
    """
    return _current if _current is not None else reload()


def fresh(name: str) -> Any:
    """Return a setting as the environment has it now, for those that a program may set after its start.

    Raises:
        SettingError: As in `load`.
    """
    current = getattr(get(), name)
    if _sources.get(name) == "override":
        return current
    row = TABLE[name]
    text, variable = row.find(os.environ)
    return row.parse(text, variable) if text else row.default


def reload() -> Settings:
    """Read the environment anew and return the settings.

    Warns of variables that begin with ``FLOWMX_`` and are no setting.

    Raises:
        SettingError: As in `load`; the settings in force stay.
    """
    global _current, _sources
    given, found_in = _given(os.environ)
    _current, _sources = Settings(**given), found_in
    _warn_unknown(os.environ)
    return _current


@contextmanager
def override(**values: object) -> Iterator[Settings]:
    """Put other values in force while the context lasts, in every thread and task: made for tests.

    Raises:
        SettingError: A value is none that its setting takes.
        TypeError: A name is no setting.
    """
    global _current, _sources
    for name in values:
        if name not in TABLE:
            raise TypeError(f"{name!r} is no setting{did_you_mean(name, TABLE)}")
    before, sources_before = get(), _sources
    checked: dict[str, Any] = {name: TABLE[name].check(value) for name, value in values.items()}
    _current, _sources = replace(before, **checked), {**sources_before, **dict.fromkeys(checked, "override")}
    try:
        yield _current
    finally:
        _current, _sources = before, sources_before


def sources() -> dict[str, str]:
    """Return where each setting's value comes from: ``default``, ``environment`` or ``override``.

    Where variables of other programs stood for the setting's own, ``environment`` is followed by their names.
    """
    get()
    return {name: _sources.get(name, "default") for name in TABLE}


def mxnet_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables of MXNet in `environ` that no setting reads."""
    read = {row.mxnet_variable for row in TABLE.values()}
    return [name for name in sorted(environ) if name.startswith(MXNET_PREFIX) and name not in read]


def _given(environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of the settings that `environ` holds, and where each was found."""
    values, found_in = {}, {}
    for name, row in TABLE.items():
        text, variable = row.find(environ)
        if text:
            values[name] = row.parse(text, variable)
            found_in[name] = "environment" if variable == row.variable else f"environment: {variable}"
    return values, found_in


def _warn_unknown(environ: Mapping[str, str]) -> None:
    known = [row.variable for row in TABLE.values()]
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable not in known:
            warnings.warn(
                f"the environment variable {variable} is no setting of flowmx and is ignored"
                f"{did_you_mean(variable, known)}; `python -m flowmx info` lists the settings",
                stacklevel=3,
            )
