"""Every setting, its environment variable, its default and its check, in one place.

A keyword of :func:`mxhybrid.create` wins over the environment variable, which wins over the default.
"""
import fnmatch
import logging
import os
import re
from dataclasses import dataclass, fields
from typing import Any, Callable, Dict, Optional, Tuple, Union

from .errors import SettingError
from .heartbeat import Limits

#: Ways of a table: measured, or forced to one of both.
WAYS = ('auto', 'servers', 'allreduce')

#: Seconds that starting a job may take before a worker gives up waiting for the others.
DEFAULT_TIMEOUT_S = 120.0

#: Seconds that a worker may do something else while all others wait for it.
DEFAULT_STALL_S = 600.0

#: Seconds of silence that mean something: three beats.
SHORTEST_SILENCE_S = 3.0

#: Instead of a partition count: find the best one while training.
AUTO = 'auto'


@dataclass(frozen=True)
class Settings:
    """Validated settings of one store.

    Attributes
    ----------
    partitions : tuple of (str, int or 'auto')
        Name pattern and partition count, first match wins; no match means one partition per server.  'auto' starts
        from there and has the best count found while training.
    servers_per_host : int
        Parameter server processes that ``horovodrun`` jobs start on each host.
    local_aggregation : bool
        Whether one worker of each host exchanges rows with the servers, and dense sums with other hosts, for all
        workers there.
    timeout : float
        Seconds to wait for the other processes while a job starts.
    log_level : str
        Level of the ``mxhybrid`` logger.
    trace : str
        File for a Chrome trace of the whole job, written on rank 0; none if empty.
    metrics : str
        File to which rank 0 appends a line of JSON for each step; none if empty.
    tensorboard : str
        Directory for the same numbers, for TensorBoard; none if empty.
    routes : tuple of (str, str)
        Name pattern and way of tables, 'auto', 'servers' or 'allreduce', first match wins; no match means 'auto'.
    plan_file : str
        File for the counts that 'auto' found; empty for none.
    wire_dtype : str
        What values of float32 parameters travel as: 'float32' or 'float16'.
    own_rows : bool
        Whether servers update dense weights that only ``nn.Embedding`` reads, so that workers pull their own rows.
    silence_timeout : float, optional
        Seconds after which a process from which nothing is heard ends the job; None for half of `timeout`.
    stall_timeout : float
        Seconds after which a worker for which the others wait ends the job; 0 for never.
    """

    partitions: Tuple[Tuple[str, Union[int, str]], ...] = ()
    servers_per_host: int = 1
    local_aggregation: bool = True
    timeout: float = DEFAULT_TIMEOUT_S
    log_level: str = 'INFO'
    trace: str = ''
    metrics: str = ''
    tensorboard: str = ''
    routes: Tuple[Tuple[str, str], ...] = (('*', 'auto'),)
    plan_file: str = ''
    wire_dtype: str = 'float32'
    own_rows: bool = True
    silence_timeout: Optional[float] = None
    stall_timeout: float = DEFAULT_STALL_S

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

    def route_for(self, name: str) -> str:
        """Way of the table `name`: 'auto', 'servers' or 'allreduce'."""
        return next((way for pattern, way in self.routes if fnmatch.fnmatchcase(name, pattern)), 'auto')

    def partitions_for(self, name: str) -> Optional[int]:
        """Partition count asked for the table `name`, or None for the default."""
        count = self._asked_for(name)
        return count if isinstance(count, int) else None

    def is_auto(self, name: str) -> bool:
        """Whether the partition count of the table `name` is to be found while training."""
        return self._asked_for(name) == AUTO

    @property
    def any_auto(self) -> bool:
        """Whether any table may be tuned."""
        return any(count == AUTO for _, count in self.partitions)


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


def _way(setting: str, value: Any) -> str:
    way = str(value).strip().lower()
    if way not in WAYS:
        raise SettingError("%s=%r is not a way for a table: use 'auto', 'servers' or 'allreduce', for all tables or by "
                           "name, for example 'embed*=allreduce,*=auto'" % (setting, value))
    return way


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


def _wire_dtype(setting: str, value: Any) -> str:
    name = getattr(value, '__name__', str(value).strip())
    if name not in ('float32', 'float16'):
        raise SettingError("%s=%r: values of float32 parameters travel as 'float32' or 'float16'" % (setting, value))
    return name


_CHECKS: Dict[str, Callable[[str, Any], Any]] = {
    'partitions': _partitions, 'servers_per_host': _count, 'local_aggregation': _switch,
    'timeout': _seconds, 'silence_timeout': _silence, 'stall_timeout': _seconds_or_never, 'log_level': _level,
    'trace': _path, 'metrics': _path, 'tensorboard': _path,
    'routes': _routes, 'plan_file': _file, 'wire_dtype': _wire_dtype, 'own_rows': _switch}


def variable(name: str) -> str:
    """Environment variable of the setting `name`."""
    return 'MXHYBRID_' + name.upper()


def resolve(keywords: Optional[Dict[str, Any]] = None, environ: Optional[Dict[str, str]] = None) -> Settings:
    """Merge keywords, environment and defaults into checked :class:`Settings`.

    Parameters
    ----------
    keywords : dict, optional
        Settings given in code; None values count as not given.
    environ : dict, optional
        Environment to read, ``os.environ`` by default.

    Raises
    ------
    SettingError
        Unknown setting or a value that cannot work.
    """
    keywords = {name: value for name, value in (keywords or {}).items() if value is not None}
    environ = os.environ if environ is None else environ  # type: ignore[assignment]
    assert environ is not None
    known = [field.name for field in fields(Settings)]
    for name in keywords:
        if name not in known:
            raise SettingError('unknown setting %r: the settings are %s' % (name, ', '.join(known)))
    values: Dict[str, Any] = {}
    for name in known:
        text = environ.get(variable(name))
        if name in keywords:
            values[name] = _CHECKS[name](name, keywords[name])
        elif text is not None and text.strip():
            values[name] = _CHECKS[name](variable(name), text)
    settings = Settings(**values)
    if settings.halves and settings.any_auto:
        raise SettingError("partitions='auto' moves rows between partitions, where they have to stay with "
                           "wire_dtype='float16': give partitions as counts, or leave one of the two out")
    return settings
