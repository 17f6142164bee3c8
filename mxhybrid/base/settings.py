"""Every setting: its environment variable, default, check, meaning and scope, declared once.

A keyword of :func:`mxhybrid.create` wins over the environment variable, which wins over what a plan says
(:mod:`mxhybrid.parallel.plans.store_plan`), which wins over the default.
"""
import fnmatch
import glob
import logging
import os
import re
import textwrap
from dataclasses import dataclass, field, fields, replace
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from .errors import SettingError

#: Ways of a table: measured, or forced to one of both.
WAYS = ('auto', 'servers', 'allreduce')
#: What carries rows between workers and servers, or whatever can.
WIRES = ('auto', 'ps-lite', 'lane')
#: What carries dense sums of arrays on CPUs, or whatever carries rows, if it can.
DENSE = ('auto', 'horovod', 'lane')
#: Seconds that starting a job may take before a worker gives up waiting for the others.
DEFAULT_TIMEOUT_S = 120.0
#: Seconds that a worker may do something else while all others wait for it.
DEFAULT_STALL_S = 600.0
#: Seconds of silence that mean something: three beats.
SHORTEST_SILENCE_S = 3.0
#: Instead of a partition count: find the best one while training.
AUTO = 'auto'


class TablePlan(NamedTuple):
    """What a plan says of a table, where settings say nothing."""

    #: 'servers' or 'allreduce'.
    route: str
    #: On the servers; None for the default.
    partitions: Optional[int] = None


class Limits(NamedTuple):
    """After how many seconds the job monitor acts."""

    #: On a process that does not come.
    start: float = 120.0
    #: On a process from which nothing is heard and that does not compute; a warning about one that does, and about a
    #: worker for which the others wait.
    silence: float = 60.0
    #: On such a process or worker; 0 for never.
    stall: float = 600.0


def _count(setting: str, value: Any) -> int:
    if isinstance(value, bool) or not re.fullmatch('[+-]?[0-9]+', str(value).strip()):
        raise SettingError('%s=%r is not a whole number: give a count of at least 1, for example %s=4'
                           % (setting, value, setting))
    count = int(value)
    if count < 1:
        raise SettingError('%s=%r is too small: give a count of at least 1, or leave it out for the default'
                           % (setting, value))
    return count


def _count_or_auto(setting: str, value: Any) -> Union[int, str]:
    if isinstance(value, str) and value.strip().lower() == AUTO:
        return AUTO
    try:
        return _count(setting, value)
    except SettingError as error:
        raise SettingError("%s. 'auto' finds one while training" % error) from None


def _by_pattern(setting: str, value: Any, check: Callable[[str, Any], Any],
                word: str, example: str) -> Tuple[Tuple[str, Any], ...]:
    """Values by name pattern, or one for all; `word` and `example` are for messages."""
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, str) and '=' in value:
        pairs = [tuple(item.rsplit('=', 1)) for item in value.split(',') if item.strip()]  # type: ignore[misc]
        if any(len(pair) != 2 for pair in pairs):
            raise SettingError("%s=%r: every entry must read pattern=%s, for example '%s'"
                               % (setting, value, word, example))
    else:
        pairs = [('*', value)]
    checked = []
    for pattern, one in pairs:
        if not isinstance(pattern, str) or not pattern.strip():
            raise SettingError("%s=%r: %r is not a name pattern; use shell patterns such as 'embed*'"
                               % (setting, value, pattern))
        label = setting if pattern == '*' else '%s[%s]' % (setting, pattern.strip())
        checked.append((pattern.strip(), check(label, one)))
    return tuple(checked)


def _partitions(setting: str, value: Any) -> Tuple[Tuple[str, Union[int, str]], ...]:
    return _by_pattern(setting, value, _count_or_auto, 'count', 'embed*=8,*=2')


def _one_of(setting: str, value: Any, known: Sequence[str], problem: str) -> str:
    """One of several words; a SettingError says what the `problem` with any other is."""
    word = str(value).strip().lower()
    if word not in known:
        raise SettingError('%s=%r %s' % (setting, value, problem))
    return word


def _way(setting: str, value: Any) -> str:
    return _one_of(setting, value, WAYS, "is not a way for a table: use 'auto', 'servers' or 'allreduce', for all "
                   "tables or by name, for example 'embed*=allreduce,*=auto'")


def _routes(setting: str, value: Any) -> Tuple[Tuple[str, str], ...]:
    return _by_pattern(setting, value, _way, 'way', 'embed*=allreduce,*=auto')


def _switch(setting: str, value: Any) -> bool:
    meanings = {'1': True, 'true': True, 'on': True, '0': False, 'false': False, 'off': False}
    try:
        return meanings[str(value).strip().lower()]
    except KeyError:
        raise SettingError('%s=%r is neither on nor off: use 1 or 0' % (setting, value)) from None


def _seconds(setting: str, value: Any) -> float:
    try:
        seconds = -1.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 < seconds < float('inf'):
        raise SettingError('%s=%r is not a number of seconds above 0, for example %s=120' % (setting, value, setting))
    return seconds


def _silence(setting: str, value: Any) -> float:
    seconds = _seconds(setting, value)
    if seconds < SHORTEST_SILENCE_S:
        raise SettingError('%s=%r is too short: processes say once a second that they live, so give at least %g'
                           % (setting, value, SHORTEST_SILENCE_S))
    return seconds


def _seconds_or_never(setting: str, value: Any) -> float:
    never = not isinstance(value, bool) and str(value).strip() in ('0', '0.0')
    return 0.0 if never else _seconds(setting, value)


def _path(setting: str, value: Any) -> str:
    try:
        path = os.fspath(value)
    except TypeError:
        path = b''
    if not isinstance(path, str) or not path.strip() or '\0' in path:
        raise SettingError('%s=%r is not a path, for example %s=/tmp/job.json; leave it out for none'
                           % (setting, value, setting))
    return path


def _file(setting: str, value: Any) -> str:
    path = os.path.abspath(_path(setting, value))
    if os.path.isdir(path):
        raise SettingError("%s=%r is a directory: give a file in it, for example %s=%r"
                           % (setting, value, setting, os.path.join(path, 'partitions.json')))
    return path


def _level(setting: str, value: Any) -> str:
    level = str(value).upper()
    if not isinstance(logging.getLevelName(level), int):
        raise SettingError('%s=%r is not a log level: use DEBUG, INFO, WARNING or ERROR' % (setting, value))
    return level


def _wire(setting: str, value: Any) -> str:
    return _one_of(setting, value, WIRES, "is not a wire: rows travel by 'ps-lite' or by the 'lane'; 'auto' takes the "
                   "lane where it can")


def _dense(setting: str, value: Any) -> str:
    return _one_of(setting, value, DENSE, "does not carry dense sums: use 'horovod' or 'lane'; 'auto' takes the lane "
                   "where rows travel by it")


def _wire_dtype(setting: str, value: Any) -> str:
    name = getattr(value, '__name__', str(value).strip())
    if name not in ('float32', 'float16'):
        raise SettingError("%s=%r: values of float32 parameters travel as 'float32' or 'float16'" % (setting, value))
    return name


#: For whom a setting holds.  ALL: all workers must have the same value; WORKER_0: only that of worker 0 counts; EACH:
#: each worker has its own.
ALL, WORKER_0, EACH = 'all', 'worker 0', 'each'


class Declaration(NamedTuple):
    """What is to be known of a setting besides its default."""

    #: Makes a value of what a user gave, or raises SettingError; the first argument is what messages call the setting.
    check: Callable[[str, Any], Any]
    #: In words, as the documentation has it.
    meaning: str
    #: One of ALL, WORKER_0 and EACH.
    scope: str = EACH
    #: Why the stores of a job cannot have different values, or what to do; empty where they can.
    once: str = ''
    #: Whether it names what worker 0 writes.
    is_output: bool = False


def _declared(default: Any, *declaration: Any, **more: Any) -> Any:
    return field(default=default, metadata={'declaration': Declaration(*declaration, **more)})


_FIRST_STORE = 'give it to the first store'


@dataclass(frozen=True)
class Settings:
    """Validated settings of one store."""

    partitions: Tuple[Tuple[str, Union[int, str]], ...] = _declared(
        (), _partitions, "number of partitions per table: a count, or counts by pattern of the parameter's name, of "
        "which the first match applies: `{'*words*': 8, '*': 2}` or `'*words*=8,*=2'`; `auto` instead of a count: "
        "found while training", ALL)
    servers_per_host: int = _declared(
        1, _count, 'number of server processes that a horovodrun job starts on each host', ALL,
        'servers are started once per job')
    timeout: float = _declared(
        DEFAULT_TIMEOUT_S, _seconds, 'seconds to wait for the other processes while the job starts; Horovod over '
        'Gloo, whose default of 30 s would be less, waits 30 s longer than this, unless '
        '`HOROVOD_GLOO_TIMEOUT_SECONDS` is set')
    log_level: str = _declared(
        'INFO', _level, 'level of the `mxhybrid` logger: DEBUG, INFO, WARNING or ERROR; the logger writes to standard '
        'error only, unless it was given handlers before the first store')
    trace: str = _declared(
        '', _path, 'file for one trace of the whole job, written by worker 0', WORKER_0, _FIRST_STORE, is_output=True)
    metrics: str = _declared(
        '', _path, 'file to which worker 0 appends a line of JSON for each step', WORKER_0, _FIRST_STORE,
        is_output=True)
    tensorboard: str = _declared(
        '', _path, 'directory for the same numbers in the format of TensorBoard; needs tensorboardX', WORKER_0,
        _FIRST_STORE, is_output=True)
    routes: Tuple[Tuple[str, str], ...] = _declared(
        (), _routes, "transport of the rows of tables: `servers` and `allreduce` force one, `auto` measures both and "
        "chooses; for all tables, or by pattern of the parameter's name, of which the first match applies: "
        "`{'embed*': 'allreduce'}` or `'embed*=allreduce,*=auto'`", ALL)
    plan_file: str = _declared(
        '', _file, "file on worker 0's host that keeps the partition counts that `auto` found; read at the start, "
        "written when a search ends", WORKER_0, is_output=True)
    wire_dtype: str = _declared(
        'float32', _wire_dtype, 'type in which values of float32 parameters travel: float32, or float16 for half the '
        'bytes', ALL, 'all stores of a job have the same')
    wire: str = _declared(
        'auto', _wire, "transport of rows between workers and servers: `ps-lite`, MXNet's own; `lane`, compiled, "
        'through memory that the servers and workers of a host share, and one connection between two hosts; `auto`: '
        'the lane if it is available', ALL, 'all stores of a job have the same')
    dense: str = _declared(
        'auto', _dense, 'transport of dense sums: `horovod`; `lane`, which then must carry rows, too; `auto`: the '
        'lane if it carries rows, but Horovod for arrays on GPUs if Horovod was built with NCCL', ALL,
        'all stores of a job have the same')
    own_rows: bool = _declared(
        True, _switch, '1: servers update the weight of an `nn.Embedding(sparse_grad=True)` that no other operator '
        'reads, and each worker pulls the rows that it needs; 0: every worker keeps a whole copy', ALL)
    replace_local_stores: bool = _declared(
        False, _switch, "1: in a job of several workers, a Trainer that was given `kvstore='device'`, `'local'`, None "
        'or nothing uses hybrid, for libraries that make the Trainer themselves; 0: such a Trainer trains on its own',
        ALL)
    silence_timeout: Optional[float] = _declared(
        None, _silence, 'seconds without any sign of life after which a process, host or link ends the job, unless '
        'the process is seen to use CPU time, see faults; at least 3', WORKER_0)
    stall_timeout: float = _declared(
        DEFAULT_STALL_S, _seconds_or_never, 'seconds after which a live worker that does not join the others, while '
        'they wait for it, ends the job, unless it saves or loads a checkpoint; the same limit holds for workers that '
        'wait for each other, and for a silent process that uses CPU time; 0: never', WORKER_0)

    @property
    def limits(self) -> Limits:
        """When the monitor acts on a process that does not come, is silent, or does not go on."""
        silence = self.timeout / 2 if self.silence_timeout is None else self.silence_timeout
        return Limits(self.timeout, max(SHORTEST_SILENCE_S, silence), self.stall_timeout)

    @property
    def halves(self) -> bool:
        """Whether float32 values travel as float16."""
        return self.wire_dtype == 'float16'

    def _asked_for(self, name: str) -> Union[int, str, None]:
        for pattern, count in self.partitions:
            if fnmatch.fnmatchcase(name, pattern):
                return count
        return None

    def way_for(self, name: str) -> str:
        """Way of the table `name`: 'auto', 'servers' or 'allreduce'."""
        return next((way for pattern, way in self.routes if fnmatch.fnmatchcase(name, pattern)), 'auto')

    def partitions_for(self, name: str) -> Optional[int]:
        """Partition count asked for the table `name`, or None for the default."""
        count = self._asked_for(name)
        return count if isinstance(count, int) else None

    def is_auto(self, name: str) -> bool:
        """Whether the partition count of the table `name` is to be found while training."""
        return self._asked_for(name) == AUTO

    def with_tables(self, tables: Mapping[str, TablePlan]) -> 'Settings':
        """These, and what a plan says of tables, by name, of which these say nothing."""
        exact = [(glob.escape(name), one) for name, one in tables.items()]
        return replace(
            self, routes=self.routes + tuple((name, one.route) for name, one in exact),
            partitions=self.partitions + tuple((name, one.partitions) for name, one in exact
                                               if one.partitions is not None))

    @property
    def any_auto(self) -> bool:
        """Whether any table may be tuned."""
        return any(count == AUTO for _, count in self.partitions)

    def shared(self) -> Dict[str, Any]:
        """Values that must be equal on all workers, by name."""
        return {name: getattr(self, name) for name, one in DECLARED.items() if one.scope == ALL}


#: By name, in the order of the documentation.
DECLARED: Dict[str, Declaration] = {one.name: one.metadata['declaration'] for one in fields(Settings)}


def variable(name: str) -> str:
    """Environment variable of the setting `name`."""
    return 'MXHYBRID_' + name.upper()


def in_words() -> str:
    """A section for the docstring of whatever takes settings."""
    lines = ['', 'Settings', '--------']
    for one in fields(Settings):
        lines.append('%s, %s=%s' % (one.name, variable(one.name), as_written(one.default)))
        lines += textwrap.wrap(DECLARED[one.name].meaning, 104, initial_indent='    ', subsequent_indent='    ')
    return '\n'.join(' ' * 8 + line for line in lines) + '\n' + ' ' * 4


def as_written(value: Any) -> str:
    """A checked value of a setting, also one that travelled as JSON, for a message: as a user writes it."""
    if isinstance(value, bool):
        return '%d' % value
    if not isinstance(value, (list, tuple)):
        return repr(value)
    if not value:
        return 'not set'
    if len(value) == 1 and value[0][0] == '*':
        return repr(value[0][1])
    return repr(','.join('%s=%s' % (pattern, one) for pattern, one in value))


def check_equal(everybody: Sequence[Mapping[str, Any]]) -> None:
    """Raise SettingError unless all workers share the same settings, given those of each by rank."""
    for rank, theirs in enumerate(everybody):
        for name, value in theirs.items():
            if value != everybody[0][name]:
                raise SettingError('%s is %s on worker 0 but %s on worker %d: give all workers the same value'
                                   % (variable(name), as_written(everybody[0][name]), as_written(value), rank))


def resolve(keywords: Optional[Dict[str, Any]] = None, environ: Mapping[str, str] = os.environ,
            planned: Optional[Mapping[str, Any]] = None) -> Settings:
    """Merge keywords, of which None counts as not given, environment, what a plan says, and defaults into checked
    :class:`Settings`.
    """
    keywords = {name: value for name, value in (keywords or {}).items() if value is not None}
    for name in keywords:
        if name not in DECLARED:
            raise SettingError('unknown setting %r: the settings are %s' % (name, ', '.join(DECLARED)))
    values: Dict[str, Any] = {}
    for name, one in DECLARED.items():
        text = environ.get(variable(name))
        if name in keywords:
            values[name] = one.check(name, keywords[name])
        elif text is not None and text.strip():
            values[name] = one.check(variable(name), text)
        elif planned and planned.get(name) is not None:
            values[name] = one.check('%s, as the plan has it' % name, planned[name])
    settings = Settings(**values)
    if settings.halves and settings.any_auto:
        raise SettingError("partitions='auto' moves rows between partitions, where they have to stay with "
                           "wire_dtype='float16': give partitions as counts, or leave one of the two out")
    if settings.dense == 'lane' and settings.wire == 'ps-lite':
        raise SettingError("dense='lane' needs the lane, which wire='ps-lite' rules out: leave one of the two out")
    return settings
