"""Values of settings: the constants that settings take, and a function for each type of value.

Such a function returns the value of a user's argument, which may be the text of an environment variable, or raises
SettingError. Its first argument names the setting in messages.
"""
import logging
import os
import re
from typing import Any, Callable, Optional, Sequence, Tuple, Union

from .errors import SettingError

#: Routes of a table: measured, or one of both.
TABLE_ROUTES = ('auto', 'servers', 'allreduce')
#: Types in which values of float32 parameters travel.
WIRE_DTYPES = ('float32', 'float16', 'int8')
#: The shortest silence, in seconds, that shows a failure: three heartbeats.
SHORTEST_SILENCE_S = 3.0
#: The value in place of a directory for rows in memory.
MEMORY = 'memory'
#: The smallest cache of rows in files.
LEAST_STORAGE_BYTES = 1000 ** 2
#: The largest staleness, ``kMaxStaleness`` of ``lane/src/memory/shared.h``.
MAX_STALENESS = 16
#: The value in place of a partition count for a search of the best one during training.
AUTO = 'auto'

#: A function that returns the checked value of a user's argument, given the setting's name for messages.
Parser = Callable[[str, Any], Any]


def parse_count(setting: str, value: Any) -> int:
    """Return a count of at least 1."""
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
        return parse_count(setting, value)
    except SettingError as error:
        raise SettingError("%s. 'auto' finds a count while training" % error) from None


def _by_pattern(check: Parser, word: str, example: str) -> Parser:
    """Return a function for values by name pattern, or one for all names; `word` and `example` are for messages."""
    def parse(setting: str, value: Any) -> Tuple[Tuple[str, Any], ...]:
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
        for pattern, item in pairs:
            if not isinstance(pattern, str) or not pattern.strip():
                raise SettingError("%s=%r: %r is not a name pattern; use shell patterns such as 'embed*'"
                                   % (setting, value, pattern))
            label = setting if pattern == '*' else '%s[%s]' % (setting, pattern.strip())
            checked.append((pattern.strip(), check(label, item)))
        return tuple(checked)
    return parse


def _one_of(known: Sequence[str], problem: str) -> Parser:
    """Return a function for one of the known words; its SettingError for another word states the `problem`."""
    def parse(setting: str, value: Any) -> str:
        word = str(value).strip().lower()
        if word not in known:
            raise SettingError('%s=%r %s' % (setting, value, problem))
        return word
    return parse


def _path_of(value: Any) -> Optional[str]:
    """Return the path that a value is; None if it is none."""
    try:
        path = os.fspath(value)
    except TypeError:
        return None
    return path if isinstance(path, str) and path.strip() and '\0' not in path else None


def _directory(setting: str, value: Any) -> str:
    path = _path_of(value)
    if path is None:
        raise SettingError("%s=%r is not a directory: give a path, or 'memory', for all tables or by name, for example "
                           "'*users*=/scratch,*=memory'" % (setting, value))
    return MEMORY if path.strip().lower() == MEMORY else os.path.abspath(path.strip())


def _size(setting: str, value: Any) -> int:
    match = re.fullmatch('([0-9]+(?:[.][0-9]+)?) ?([kMGT]?)B?', str(value).strip())
    size_bytes = 0 if match is None or isinstance(value, bool) else int(
        float(match.group(1)) * 1000 ** ' kMGT'.index(match.group(2) or ' '))
    if size_bytes < LEAST_STORAGE_BYTES:
        raise SettingError('%s=%r is not a size of at least 1 MB: give bytes, also with a unit, for example %s=8G, or '
                           'leave it out for as much as the system leaves' % (setting, value, setting))
    return size_bytes


def _steps(setting: str, value: Any) -> int:
    count = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch('[0-9]+', count) or int(count) > MAX_STALENESS:
        raise SettingError("%s=%r is not a number of steps: give an integer from 0 to %d, for all tables or by name, "
                           "for example 'embed*=1,*=0'" % (setting, value, MAX_STALENESS))
    return int(count)


def parse_switch(setting: str, value: Any) -> bool:
    """Return True for on, False for off."""
    meanings = {'1': True, 'true': True, 'on': True, '0': False, 'false': False, 'off': False}
    try:
        return meanings[str(value).strip().lower()]
    except KeyError:
        raise SettingError('%s=%r is neither on nor off: use 1 or 0' % (setting, value)) from None


def parse_switch_or_auto(setting: str, value: Any) -> Optional[bool]:
    """Return True for on, False for off, None for `auto`."""
    if str(value).strip().lower() == 'auto':
        return None
    try:
        return parse_switch(setting, value)
    except SettingError:
        raise SettingError("%s=%r is neither on nor off: use 1, 0 or 'auto'" % (setting, value)) from None


def parse_seconds(setting: str, value: Any) -> float:
    """Return a number of seconds above 0."""
    try:
        seconds = -1.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 < seconds < float('inf'):
        raise SettingError('%s=%r is not a number of seconds above 0: give one, for example %s=120'
                           % (setting, value, setting))
    return seconds


def parse_silence(setting: str, value: Any) -> float:
    """Return the seconds of a silence that shows a failure."""
    seconds = parse_seconds(setting, value)
    if seconds < SHORTEST_SILENCE_S:
        raise SettingError('%s=%r is too short: processes send a heartbeat once a second, so give at least %g'
                           % (setting, value, SHORTEST_SILENCE_S))
    return seconds


def parse_seconds_or_never(setting: str, value: Any) -> float:
    """Return a number of seconds; 0 for never."""
    if not isinstance(value, bool) and str(value).strip() in ('0', '0.0'):
        return 0.0
    try:
        return parse_seconds(setting, value)
    except SettingError as error:
        raise SettingError('%s, or 0 for never' % error) from None


def parse_path(setting: str, value: Any) -> str:
    path = _path_of(value)
    if path is None:
        raise SettingError('%s=%r is not a path: give one, for example %s=/tmp/job.json, or leave it out for none'
                           % (setting, value, setting))
    return path


def parse_file(setting: str, value: Any) -> str:
    """Return the absolute path of a file."""
    path = os.path.abspath(parse_path(setting, value))
    if os.path.isdir(path):
        raise SettingError("%s=%r is a directory: give a file in it, for example %s=%r"
                           % (setting, value, setting, os.path.join(path, 'partitions.json')))
    return path


def parse_level(setting: str, value: Any) -> str:
    level = str(value).upper()
    if not isinstance(logging.getLevelName(level), int):
        raise SettingError('%s=%r is not a log level: use DEBUG, INFO, WARNING or ERROR' % (setting, value))
    return level


def _wire_dtype(setting: str, value: Any) -> str:
    name = getattr(value, '__name__', str(value).strip())
    if name not in WIRE_DTYPES:
        raise SettingError("%s=%r is not a type of values on the wire: use 'float32', 'float16' or 'int8', for all "
                           "parameters or by name, for example 'embed*=int8,*=float16'" % (setting, value))
    return name


parse_row_transport = _one_of(('auto', 'ps-lite', 'lane'), "is not a transport of rows: use 'ps-lite' or 'lane'; "
                              "'auto' takes the lane if it is available")
parse_dense_transport = _one_of(('auto', 'horovod', 'lane'), "does not carry dense sums: use 'horovod' or 'lane'; "
                                "'auto' takes the lane if it carries rows")
parse_partitions = _by_pattern(_count_or_auto, 'count', 'embed*=8,*=2')
parse_routes = _by_pattern(_one_of(TABLE_ROUTES, "is not a route of a table: use 'auto', 'servers' or 'allreduce', for "
                                   "all tables or by name, for example 'embed*=allreduce,*=auto'"),
                           'route', 'embed*=allreduce,*=auto')
parse_directories = _by_pattern(_directory, 'directory', '*users*=/scratch,*=memory')
parse_sizes = _by_pattern(_size, 'size', '*users*=8G,*=500M')
parse_staleness = _by_pattern(_steps, 'steps', 'embed*=1,*=0')
parse_wire_dtypes = _by_pattern(_wire_dtype, 'type', 'embed*=int8,*=float16')
