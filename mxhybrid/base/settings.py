"""Every setting: its environment variable, default, check, meaning and scope, declared once.

A keyword of :func:`mxhybrid.create` has precedence over the environment variable, which has precedence over a plan
(:mod:`mxhybrid.parallel.plans.store_plan`), which has precedence over the default.
"""
import fnmatch
import glob
import os
import textwrap
from dataclasses import dataclass, field, fields, replace
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import setting_values
from .errors import SettingError
from .setting_values import AUTO, MEMORY, SHORTEST_SILENCE_S

#: Seconds that a worker waits for the others while the job starts.
DEFAULT_TIMEOUT_S = 120.0
#: Seconds for which a worker may keep all others waiting.
DEFAULT_STALL_S = 600.0


class TablePlan(NamedTuple):
    """The settings of a table in a plan, for tables without settings of their own."""

    #: 'servers' or 'allreduce'.
    route: str
    #: The number of partitions on the servers; None for the default.
    partitions: Optional[int] = None


class Limits(NamedTuple):
    """The time limits, in seconds, after which the job monitor acts."""

    #: The limit for a process that does not join.
    start: float = 120.0
    #: The limit for a process that is silent and does not compute.  After it there is also a warning about a process
    #: that is silent but computes, and about a worker that keeps the others waiting.
    silence: float = 60.0
    #: The limit for such a process or worker; 0 for never.
    stall: float = 600.0


#: Scopes of settings.  ALL: all workers must have the same value; WORKER_0: only the value of worker 0 counts; EACH:
#: each worker has its own value.
ALL, WORKER_0, EACH = 'all', 'worker 0', 'each'


class Declaration(NamedTuple):
    """The declaration of a setting, without its default."""

    #: Returns the value of a user's argument, or raises SettingError; the first argument names the setting in messages.
    check: Callable[[str, Any], Any]
    #: A description, as in the documentation.
    meaning: str
    #: One of ALL, WORKER_0 and EACH.
    scope: str = EACH
    #: Why the stores of a job cannot have different values, or a remedy; empty if they can.
    once: str = ''
    #: Whether it names a file or folder that worker 0 writes.
    is_output: bool = False


def _declared(default: Any, *declaration: Any, **more: Any) -> Any:
    return field(default=default, metadata={'declaration': Declaration(*declaration, **more)})


def _first_match(values: Sequence[Tuple[str, Any]], name: str, default: Any) -> Any:
    """Return the value of the first pattern that a name matches, else the default."""
    return next((value for pattern, value in values if fnmatch.fnmatchcase(name, pattern)), default)


_FIRST_STORE = 'give it to the first store'


@dataclass(frozen=True)
class Settings:
    """Validated settings of one store."""

    partitions: Tuple[Tuple[str, Union[int, str]], ...] = _declared(
        (), setting_values.parse_partitions,
        "number of partitions per table: a count, or counts by pattern of the parameter's name, of "
        "which the first match applies: `{'*words*': 8, '*': 2}` or `'*words*=8,*=2'`; `auto` instead of a count: "
        "found while training", ALL)
    servers_per_host: int = _declared(
        1, setting_values.parse_count, 'number of server processes that a horovodrun job starts on each host', ALL,
        'servers are started once per job')
    timeout: float = _declared(
        DEFAULT_TIMEOUT_S, setting_values.parse_seconds,
        'seconds to wait for the other processes while the job starts, under horovodrun from the arrival of the last '
        'worker that came; Horovod over Gloo, whose default of 30 s would be less, waits longer than this, unless '
        '`HOROVOD_GLOO_TIMEOUT_SECONDS` is set')
    log_level: str = _declared(
        'INFO', setting_values.parse_level,
        'level of the `mxhybrid` logger: DEBUG, INFO, WARNING or ERROR; the logger writes to standard '
        'error only, unless it was given handlers before the first store')
    trace: str = _declared(
        '', setting_values.parse_path,
        'file for one trace of the whole job, written by worker 0', WORKER_0, _FIRST_STORE, is_output=True)
    metrics: str = _declared(
        '', setting_values.parse_path, 'file to which worker 0 appends a line of JSON for each step', WORKER_0,
        _FIRST_STORE, is_output=True)
    tensorboard: str = _declared(
        '', setting_values.parse_path,
        'directory for the same numbers in the format of TensorBoard; needs tensorboardX', WORKER_0, _FIRST_STORE,
        is_output=True)
    routes: Tuple[Tuple[str, str], ...] = _declared(
        (), setting_values.parse_routes,
        "transport of the rows of tables: `servers` and `allreduce` force one, `auto` measures both and "
        "chooses; for all tables, or by pattern of the parameter's name, of which the first match applies: "
        "`{'embed*': 'allreduce'}` or `'embed*=allreduce,*=auto'`", ALL)
    partition_file: str = _declared(
        '', setting_values.parse_file,
        "file on worker 0's host that keeps the partition counts that `auto` found; read at the start, "
        "written when a search ends", WORKER_0, is_output=True)
    wire_dtype: Tuple[Tuple[str, str], ...] = _declared(
        (('*', 'float32'),), setting_values.parse_wire_dtypes,
        "type in which values of float32 parameters travel: `float32`, `float16` "
        "for half the bytes, or `int8` for about a quarter; for all parameters, or by pattern of the name, of which "
        "the first match applies: `{'embed*': 'int8', '*': 'float16'}` or `'embed*=int8,*=float16'`", ALL,
        'all stores of a job have the same')
    max_batch_rows: int = _declared(
        1 << 20, setting_values.parse_count,
        'most distinct rows of a dynamic table that a worker pulls or pushes at a time; address space is reserved for '
        'this number, and memory is taken for the rows of the largest batch', ALL)
    storage: Tuple[Tuple[str, str], ...] = _declared(
        (), setting_values.parse_directories,
        "where servers keep the rows and optimizer state of dynamic tables: `memory`, or a directory "
        "on each server's host for files, so that a table may exceed the memory; for all tables, or by pattern of the "
        "parameter's name, of which the first match applies: `{'*users*': '/scratch', '*': 'memory'}` or "
        "`'*users*=/scratch,*=memory'`", ALL)
    storage_memory: Tuple[Tuple[str, int], ...] = _declared(
        (), setting_values.parse_sizes,
        "memory of a server for a cache of the rows and optimizer state of a dynamic table in files: "
        "bytes, or text such as `8G`, with powers of 1000; for each table, or by pattern as for `storage`; without it, "
        "the system decides which parts of the files are in memory, which is slow if they do not fit", ALL)
    staleness: Tuple[Tuple[str, int], ...] = _declared(
        (), setting_values.parse_staleness,
        "number of last steps of other workers whose changes the rows that a worker pulls for training "
        "may lack, 0 to 16, so that rows travel while workers compute; a worker's own changes are always there; for "
        "all tables, or by pattern of the parameter's name, of which the first match applies: `{'*words*': 1}` or "
        "`'*words*=1,*=0'`; needs the lane", ALL)
    row_transport: str = _declared(
        'auto', setting_values.parse_row_transport,
        "transport of rows between workers and servers: `ps-lite`, MXNet's own; `lane`, compiled, through memory that "
        'the servers and workers of a host share, and one connection between two hosts; `auto`: the lane if it is '
        'available', ALL, 'all stores of a job have the same')
    dense_transport: str = _declared(
        'auto', setting_values.parse_dense_transport,
        'transport of dense sums: `horovod`; `lane`, which then must carry rows, too; `auto`: the lane if it carries '
        'rows, but Horovod for arrays on GPUs if Horovod was built with NCCL', ALL,
        'all stores of a job have the same')
    on_demand_rows: bool = _declared(
        True, setting_values.parse_switch,
        '1: servers update the weight of an `nn.Embedding(sparse_grad=True)` that no other operator '
        'reads, and each worker pulls the rows that it needs; 0: every worker keeps a whole copy', ALL)
    shard_updates: bool = _declared(
        False, setting_values.parse_switch,
        '1: each worker updates a part of the dense weights and keeps the optimizer state of that part '
        'only, and the workers gather the updated weights; 0: every worker updates all of its weights', ALL)
    replace_local_stores: bool = _declared(
        False, setting_values.parse_switch,
        "1: in a job of several workers, a Trainer that was given `kvstore='device'`, `'local'`, None "
        'or nothing uses hybrid, for libraries that make the Trainer themselves; 0: such a Trainer trains on its own',
        ALL)
    bind_to_cores: Optional[bool] = _declared(
        None, setting_values.parse_switch_or_auto,
        '1: the workers of a machine divide its cores among themselves, and each of them computes on its own cores '
        'only; 0: the system decides; `auto`: 1 on a machine whose workers compute with as many threads, by '
        '`OMP_NUM_THREADS`, as it has cores', ALL, 'all stores of a job have the same')
    silence_timeout: Optional[float] = _declared(
        None, setting_values.parse_silence,
        'seconds without any sign of life after which a process, host or link ends the job, unless '
        'the process is seen to use CPU time, see faults; at least 3', WORKER_0)
    stall_timeout: float = _declared(
        DEFAULT_STALL_S, setting_values.parse_seconds_or_never,
        'seconds after which a live worker that does not join the others, while '
        'they wait for it, ends the job, unless it saves or loads a checkpoint; the same limit holds for workers that '
        'wait for each other, and for a silent process that uses CPU time; 0: never', WORKER_0)

    @property
    def limits(self) -> Limits:
        """The time limits for processes that do not join, are silent, or keep others waiting."""
        silence = self.timeout / 2 if self.silence_timeout is None else self.silence_timeout
        return Limits(self.timeout, max(SHORTEST_SILENCE_S, silence), self.stall_timeout)

    def wire_dtype_for(self, name: str) -> str:
        """Return the type in which float32 values of the parameter `name` travel."""
        return _first_match(self.wire_dtype, name, 'float32')

    def may_travel_as(self, wire_dtype: str) -> bool:
        """Return whether float32 values of some parameters may travel as `wire_dtype`."""
        return any(dtype == wire_dtype for _, dtype in self.wire_dtype)

    @property
    def rounds(self) -> bool:
        """True if values of some parameters may be rounded before they travel."""
        return self.may_travel_as('float16') or self.may_travel_as('int8')

    def route_for(self, name: str) -> str:
        """Return the route of the table `name`: 'auto', 'servers' or 'allreduce'."""
        return _first_match(self.routes, name, 'auto')

    def storage_for(self, name: str) -> Tuple[str, int]:
        """Return the directory of the dynamic table `name`, '' for memory, and the resident bytes, 0 for no limit."""
        directory = _first_match(self.storage, name, MEMORY)
        return ('', 0) if directory == MEMORY else (directory, _first_match(self.storage_memory, name, 0))

    def staleness_for(self, name: str) -> int:
        return _first_match(self.staleness, name, 0)

    @property
    def any_stale(self) -> bool:
        """True if a table may have staleness."""
        return any(steps for _, steps in self.staleness)

    def partitions_for(self, name: str) -> Optional[int]:
        """Return the partition count for the table `name`, or None for the default."""
        count = _first_match(self.partitions, name, AUTO)
        return None if count == AUTO else count

    def is_auto(self, name: str) -> bool:
        """Return whether the partition count of the table `name` is searched during training."""
        return _first_match(self.partitions, name, None) == AUTO

    def with_tables(self, tables: Mapping[str, TablePlan]) -> 'Settings':
        """Return these settings, with those of a plan, by name, for tables without settings of their own."""
        plans = [(glob.escape(name), plan) for name, plan in tables.items()]
        return replace(
            self, routes=self.routes + tuple((pattern, plan.route) for pattern, plan in plans),
            partitions=self.partitions + tuple((pattern, plan.partitions) for pattern, plan in plans
                                               if plan.partitions is not None))

    @property
    def any_auto(self) -> bool:
        """True if the partition count of a table may be searched during training."""
        return any(count == AUTO for _, count in self.partitions)

    def shared(self) -> Dict[str, Any]:
        """Return the values that must be equal on all workers, by name."""
        return {name: getattr(self, name) for name, declaration in DECLARED.items() if declaration.scope == ALL}


#: Declarations by name, in the order of the documentation.
DECLARED: Dict[str, Declaration] = {setting.name: setting.metadata['declaration'] for setting in fields(Settings)}


def variable(name: str) -> str:
    """Return the environment variable of the setting `name`."""
    return 'MXHYBRID_' + name.upper()


def in_words() -> str:
    """Return a section about all settings for a docstring."""
    lines = ['', 'Settings', '--------']
    for setting in fields(Settings):
        lines.append('%s, %s=%s' % (setting.name, variable(setting.name), as_written(setting.default)))
        lines += textwrap.wrap(DECLARED[setting.name].meaning, 104, initial_indent='    ', subsequent_indent='    ')
    return '\n'.join(' ' * 8 + line for line in lines) + '\n' + ' ' * 4


def as_written(value: Any) -> str:
    """Return a checked value of a setting, also one that was sent as JSON, as a user writes it, for a message."""
    if isinstance(value, bool):
        return '%d' % value
    if not isinstance(value, (list, tuple)):
        return repr(value)
    if not value:
        return 'not set'
    if len(value) == 1 and value[0][0] == '*':
        return repr(value[0][1])
    return repr(','.join('%s=%s' % (pattern, item) for pattern, item in value))


def check_equal(settings_by_rank: Sequence[Mapping[str, Any]]) -> None:
    """Raise SettingError unless all workers have the same settings, given those of each worker by rank."""
    for rank, settings in enumerate(settings_by_rank):
        for name, value in settings.items():
            if value != settings_by_rank[0][name]:
                raise SettingError('%s is %s on worker 0 but %s on worker %d: give all workers the same value'
                                   % (variable(name), as_written(settings_by_rank[0][name]), as_written(value), rank))


def resolve(keywords: Optional[Dict[str, Any]] = None, environ: Mapping[str, str] = os.environ
            ) -> Settings:
    """Merge keywords, environment and defaults into checked :class:`Settings`.

    A keyword of None counts as not given.
    """
    keywords = {name: value for name, value in (keywords or {}).items() if value is not None}
    for name in keywords:
        if name not in DECLARED:
            raise SettingError('unknown setting %r: use one of %s' % (name, ', '.join(DECLARED)))
    values: Dict[str, Any] = {}
    for name, declaration in DECLARED.items():
        text = environ.get(variable(name), '')
        if name in keywords:
            values[name] = declaration.check(name, keywords[name])
        elif text.strip():
            values[name] = declaration.check(variable(name), text)
    settings = Settings(**values)
    if settings.rounds and settings.any_auto:
        raise SettingError("partitions='auto' moves rows between partitions, which wire_dtype=%s does not allow: give "
                           "partitions as counts, or leave one of the two settings out"
                           % as_written(settings.wire_dtype))
    if settings.may_travel_as('int8') and settings.row_transport == 'ps-lite':
        raise SettingError("wire_dtype=%s needs the lane, which row_transport='ps-lite' rules out: use float16 in "
                           "place of int8, or leave row_transport out" % as_written(settings.wire_dtype))
    if settings.dense_transport == 'lane' and settings.row_transport == 'ps-lite':
        raise SettingError("dense_transport='lane' needs the lane, which row_transport='ps-lite' rules out: leave one "
                           "of the two settings out")
    return settings
