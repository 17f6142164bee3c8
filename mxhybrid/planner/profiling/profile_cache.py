"""The file that keeps times measured on this machine; several processes may write it."""
import contextlib
import functools
import hashlib
import inspect
import json
import os
import sys
from typing import Any, Dict, Iterator, List, Optional

import mxnet as mx

from ...base import json_text
from ...base.errors import InputError
from ...base.files import locked_within, write_atomically
from ...parallel import rules
from ...parallel.runtime import fetched_inputs, network_shards, parameter_symbols, rank_program
from . import core_benchmark, local_program, profile_key, scaled_shard, single_operator, timer

FORMAT = 'mxhybrid.profiles 2'

#: Sections of the file, with the number of values that each of their entries has.
SECTIONS = {'parts': 4, 'programs': 2, 'reference': 3}

#: Seconds that a writer waits for another one, which takes milliseconds.
_LOCK_S = 5.0

#: Modules that decide what the program of a shard is and how it is timed.
_MODULES = (*(module for _, module in inspect.getmembers(rules, inspect.ismodule)),
            fetched_inputs, network_shards, parameter_symbols, rank_program, core_benchmark, local_program,
            profile_key, scaled_shard, single_operator, timer)


@functools.lru_cache(None)
def _code_version() -> str:
    """Return a digest of those modules."""
    digest = hashlib.sha256()
    for module in _MODULES:
        digest.update(inspect.getsource(module).encode())
    return digest.hexdigest()[:12]


def this_machine() -> Dict[str, str]:
    """Return the facts on which times depend: MXNet's build, this package's code, the CPU, the number of threads."""
    library = mx.libinfo.find_lib_path()[0]
    return {'mxnet': '%s, %d bytes' % (mx.__version__, os.path.getsize(library)), 'mxhybrid': _code_version(),
            'cpu': _cpu(), 'threads': str(timer.omp_threads())}


def _cpu() -> str:
    keys = ('model name', 'cpu family', 'model', 'stepping')
    values: Dict[str, str] = {}
    try:
        with open('/proc/cpuinfo', encoding='utf-8') as lines:
            for line in lines:
                key, _, value = line.partition(':')
                if key.strip() in keys:
                    values.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    return ', '.join(values[key] for key in keys if key in values) or 'unknown'


def default_path() -> str:
    """Return the path of this machine's file; several machines may share a home directory."""
    home = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache')
    key = hashlib.sha256(json.dumps(this_machine(), sort_keys=True).encode()).hexdigest()[:12]
    return os.path.join(home, 'mxhybrid', 'profiles-%s.json' % key)


def read_profiles(path: str) -> Dict[str, Dict[str, List[float]]]:
    """Return the content of a file by section; all sections are empty if there is no file.

    Raises InputError if the file cannot be read, has another format, or was measured on another machine.
    """
    profiles: Dict[str, Dict[str, List[float]]] = {section: {} for section in SECTIONS}
    try:
        with open(path, encoding='utf-8') as file:
            value = json_text.parse(file.read())
    except FileNotFoundError:
        return profiles
    except (OSError, ValueError) as error:
        raise InputError('profiles: cannot read %s: %s: delete it, or give another file' % (path, error)) from error
    if not isinstance(value, dict) or value.get('format') != FORMAT or not all(
            isinstance(value.get(section), dict) for section in SECTIONS):
        raise InputError('profiles: %s has no format %r: delete it, or give another file' % (path, FORMAT))
    machine, recorded = this_machine(), value.get('machine')
    for name in machine:
        recorded_value = recorded.get(name) if isinstance(recorded, dict) else None
        if recorded_value != machine[name]:
            raise InputError('profiles: %s was measured with %s %r, but here it is %r: give another file, or delete it'
                             % (path, name, recorded_value, machine[name]))
    for section in SECTIONS:
        for key, entry in value[section].items():
            if not isinstance(entry, list) or len(entry) != SECTIONS[section] or not all(
                    isinstance(number, (int, float)) and 0 <= number <= sys.float_info.max for number in entry):
                raise InputError('profiles: %s has %r for %r, expected %d numbers of at least 0: delete it, or give '
                                 'another file' % (path, entry, key, SECTIONS[section]))
            profiles[section][key] = [float(number) for number in entry]
    return profiles


def merge_profiles(path: str, new: Dict[str, Dict[str, List[float]]]) -> Dict[str, Dict[str, List[float]]]:
    """Add new entries to a file, and return its whole content."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with _locked(path + '.lock'):
        profiles = read_profiles(path)
        for section, entries in _rescaled(new, profiles['reference'].get('seconds')).items():
            profiles[section].update(entries)
        value: Dict[str, Any] = {'format': FORMAT, 'machine': this_machine(), **profiles}
        write_atomically(path, (json.dumps(value, indent=0, sort_keys=True) + '\n').encode())
    return profiles


def _rescaled(new: Dict[str, Dict[str, List[float]]], file_reference: Optional[List[float]]
              ) -> Dict[str, Dict[str, List[float]]]:
    """Return new entries as times of the core that the file's reference times belong to."""
    own_reference = new['reference'].get('seconds')
    if own_reference is None or file_reference is None or own_reference == file_reference:
        return new
    own_times, file_times = core_benchmark.KernelTimes(*own_reference), core_benchmark.KernelTimes(*file_reference)
    speed = own_times.speed_relative_to(file_times)

    def rescale(entry: List[float]) -> List[float]:
        return [seconds * speed for seconds in entry[:2]] + entry[2:]  # forward and backward; then flop and bytes
    return {'reference': {}, **{section: {key: rescale(entry) for key, entry in new[section].items()}
                                for section in ('parts', 'programs')}}


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Exclude other writers, for as long as writing a small file takes."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        # A writer that was stopped must not stop others: at worst, times are measured again.
        locked_within(handle, _LOCK_S, _LOCK_S / 500)
        yield
    finally:
        os.close(handle)
