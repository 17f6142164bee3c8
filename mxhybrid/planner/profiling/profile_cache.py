"""The file that keeps times of this machine, which several processes may write."""
import contextlib
import functools
import hashlib
import inspect
import json
import os
import sys
from typing import Any, Dict, Iterator, List, Optional

import mxnet as mx

from ...base.errors import InputError
from ...base.files import locked_within, write_atomically
from ...parallel.ops import (
    aligned_rules,
    attention_rules,
    collective_ops,
    copy_rules,
    layer_rules,
    loss_rules,
    shape_rules,
)
from ...parallel.runtime import rank_program
from . import core_benchmark, local_program, profile_key, scaled_shard, single_operator, timer

FORMAT = 'mxhybrid.profiles 2'

#: What is kept, each by a key: how many numbers.
SECTIONS = {'parts': 4, 'programs': 2, 'reference': 3}


#: How long a writer waits for another one, which takes milliseconds.
_LOCK_S = 5.0

#: Modules by which it is decided what a part is made of, and how it is timed.
_MODULES = (aligned_rules, attention_rules, collective_ops, copy_rules, layer_rules, loss_rules, shape_rules,
            rank_program, core_benchmark, local_program, profile_key, scaled_shard, single_operator, timer)


@functools.lru_cache(None)
def _code() -> str:
    """Tells versions of those modules apart."""
    found = hashlib.sha256()
    for module in _MODULES:
        found.update(inspect.getsource(module).encode())
    return found.hexdigest()[:12]


def this_machine() -> Dict[str, str]:
    """What times depend on: MXNet's build, what parts are made of, CPU, threads."""
    library = mx.libinfo.find_lib_path()[0]
    return {'mxnet': '%s, %d bytes' % (mx.__version__, os.path.getsize(library)), 'mxhybrid': _code(), 'cpu': _cpu(),
            'threads': str(timer.omp_threads())}


def _cpu() -> str:
    wanted = ('model name', 'cpu family', 'model', 'stepping')
    found: Dict[str, str] = {}
    try:
        with open('/proc/cpuinfo', encoding='utf-8') as lines:
            for line in lines:
                key, _, value = line.partition(':')
                if key.strip() in wanted:
                    found.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    return ', '.join(found[key] for key in wanted if key in found) or 'unknown'


def default_path() -> str:
    """One file for each machine, so that homes may be shared."""
    home = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache')
    key = hashlib.sha256(json.dumps(this_machine(), sort_keys=True).encode()).hexdigest()[:12]
    return os.path.join(home, 'mxhybrid', 'profiles-%s.json' % key)


def read_profiles(path: str) -> Dict[str, Dict[str, List[float]]]:
    """What a file keeps, by section; nothing where there is no file.

    Raises
    ------
    InputError
        It cannot be read, is none of this version, or was measured elsewhere.
    """
    empty: Dict[str, Dict[str, List[float]]] = {section: {} for section in SECTIONS}
    try:
        with open(path, encoding='utf-8') as file:
            value = json.load(file)
    except FileNotFoundError:
        return empty
    except (OSError, ValueError, RecursionError) as error:
        raise InputError('profiles: cannot read %s: %s; delete it, or give another file' % (path, error)) from error
    if not isinstance(value, dict) or value.get('format') != FORMAT or not all(
            isinstance(value.get(section), dict) for section in SECTIONS):
        raise InputError('profiles: %s has no format %r: delete it, or give another file' % (path, FORMAT))
    here, there = this_machine(), value.get('machine')
    for what in here:
        theirs = there.get(what) if isinstance(there, dict) else None
        if theirs != here[what]:
            raise InputError('profiles: %s was measured with %s %r, but here it is %r: give another file, or delete it'
                             % (path, what, theirs, here[what]))
    for section in SECTIONS:
        for key, entry in value[section].items():
            if not isinstance(entry, list) or len(entry) != SECTIONS[section] or not all(
                    isinstance(one, (int, float)) and 0 <= one <= sys.float_info.max for one in entry):
                raise InputError('profiles: %s has %r for %r: delete it, or give another file' % (path, entry, key))
            empty[section][key] = [float(one) for one in entry]
    return empty


def merge_profiles(path: str, kept: Dict[str, Dict[str, List[float]]]) -> Dict[str, Dict[str, List[float]]]:
    """Add to a file, and return all that it keeps then."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with _alone(path + '.lock'):
        found = read_profiles(path)
        for section, entries in _by_reference(kept, found['reference'].get('seconds')).items():
            found[section].update(entries)
        value: Dict[str, Any] = {'format': FORMAT, 'machine': this_machine(), **found}
        write_atomically(path, (json.dumps(value, indent=0, sort_keys=True) + '\n').encode())
    return found


def _by_reference(kept: Dict[str, Dict[str, List[float]]], seconds: Optional[List[float]]
                  ) -> Dict[str, Dict[str, List[float]]]:
    """Return times beside those of a file, whose reference took so many `seconds`: all are times of one core."""
    own = kept['reference'].get('seconds')
    if own is None or seconds is None or own == seconds:
        return kept
    speed = core_benchmark.KernelTimes(*own).speed_relative_to(core_benchmark.KernelTimes(*seconds))

    def made_up(entry: List[float]) -> List[float]:
        return [one * speed for one in entry[:2]] + entry[2:]  # forward and backward; then what is no time
    return {'reference': {}, **{section: {key: made_up(entry) for key, entry in kept[section].items()}
                                for section in ('parts', 'programs')}}


@contextlib.contextmanager
def _alone(path: str) -> Iterator[None]:
    """Keep other writers away, for as long as a small file takes."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        # A writer that was stopped must not stop others: at worst times are measured again.
        locked_within(handle, _LOCK_S, _LOCK_S / 500)
        yield
    finally:
        os.close(handle)
