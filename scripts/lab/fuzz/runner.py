"""Runs programs with MXNet alone and in a job, many of them in the same processes, and compares."""
import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import numpy as np

from lab.jobs import start_job

from . import pieces
from .drawing import PER_JOB, draw
from .program import tolerance
from .script import commands, standing_alone

BODY = Path(__file__).resolve().parent / 'body.py'

#: Seconds that a worker may take from one event to the next, or to start.
EVENT_S = 90.0

_POLL_S = 0.1

#: Changes a script.
Alter = Callable[[str], str]

#: Errors by which mxhybrid refuses.
_REFUSALS = ('InputError', 'SettingError')


class Kind(NamedTuple):
    """A kind of programs: how they are drawn, written, compared and made small."""

    name: str
    draw: Callable[[int], Dict[str, Any]]
    #: Programs with following seeds that share a job.
    per_job: int
    standing_alone: Callable[..., str]
    commands: Callable[[Dict[str, Any], str], List[str]]
    tolerance: Callable[[Dict[str, Any]], Any]


PLAIN = Kind('fuzz', draw, PER_JOB, standing_alone, commands, tolerance)


class Outcome(NamedTuple):
    """The outcome of a program.

    Attributes
    ----------
    kind : str
        'same'; 'differs', from MXNet alone; 'workers differ', from each other; 'refused', by mxhybrid; 'failed', with
        another error; 'hangs'; 'dies'; 'invalid', where MXNet alone fails.
    words : str
        What was found.
    event : int
        Where, counted from 1; 0 before the first and where it is not known.
    """

    kind: str
    words: str = ''
    event: int = 0

    @property
    def fails(self) -> bool:
        """Return whether this is a finding."""
        return self.kind not in ('same', 'invalid')


class Side(NamedTuple):
    """The result of a program on one side: a problem, the values of each worker, and the slack that rounding gets."""

    problem: Optional[Outcome]
    values: List[Dict[str, np.ndarray]]
    slack: Dict[str, float] = {}


def run_all(programs: List[Dict[str, Any]], alter: Optional[Alter] = None, kind: Kind = PLAIN) -> List[Outcome]:
    """Run programs, those together that have the same job settings."""
    groups: Dict[str, List[int]] = {}
    for number, program in enumerate(programs):
        groups.setdefault(repr(sorted(program['job'].items())), []).append(number)
    outcomes: Dict[int, Outcome] = {}
    for numbers in groups.values():
        outcomes.update(zip(numbers, run([programs[number] for number in numbers], alter, kind)))
    return [outcomes[number] for number in range(len(programs))]


def run(programs: List[Dict[str, Any]], alter: Optional[Alter] = None, kind: Kind = PLAIN) -> List[Outcome]:
    """Run programs that share the settings of a job, in their order.

    Parameters
    ----------
    programs : list of dict
    alter : callable, optional
        Changes the script that the job runs, to plant a difference.
    kind : Kind, optional
    """
    directory = Path(tempfile.mkdtemp(prefix='mxhybrid-fuzz-'))
    try:
        names = ['%03d' % number for number in range(len(programs))]
        for name, program in zip(names, programs):
            (directory / (name + '.py')).write_text(kind.standing_alone([program]))
        expected = _run_side(directory, 'mxnet', names, None)
        valid = [name for name in names if expected[name].problem is None]
        if alter is not None:
            for name in names:
                path = directory / (name + '.py')
                path.write_text(alter(path.read_text()))
        sides = _run_side(directory, 'job', valid, programs[0]['job'])
        moving = [name for name, program in zip(names, programs) if name in sides and sides[name].problem is None
                  and any(event['do'] == 'move' for event in program['events'])]
        if moving:  # which go on in another job
            for name, side in _run_side(directory, 'moved', moving, programs[0]['job']['next']).items():
                sides[name] = Side(side.problem, sides[name].values + side.values)
        return [_judge(program, expected[name], sides.get(name), kind)
                for name, program in zip(names, programs)]
    finally:
        shutil.rmtree(str(directory), ignore_errors=True)


# -- one side ------------------------------------------------------------------------------------------------------

def _run_side(directory: Path, side: str, names: List[str], job: Optional[Dict[str, Any]]) -> Dict[str, Side]:
    """Run programs in one job, or, after one that ends it, in another."""
    workers = job['workers'] if job else 1

    def read(name: str) -> Optional[Side]:
        is_whole = all((directory / ('%s.%s.%d.json' % (name, side, rank))).exists() for rank in range(workers))
        return _read(directory, side, name, workers) if is_whole else None
    return run_in_jobs(directory, side, names, lambda: _run_job(directory, side, job), read,
                       lambda name, ended: Side(_of_some(directory, side, name, ended), []),
                       lambda last, ended: Side(ended, last.values))


def run_in_jobs(directory: Path, side: str, names: List[str], run_job: Callable[[], Optional[Outcome]],
                read: Callable[[str], Any], blamed: Callable[[str, Outcome], Any],
                ended_badly: Callable[[Any, Outcome], Any]) -> Dict[str, Any]:
    """Run programs in one job, or, after one that ends it, in another; return their results by name.

    The body reads the names from ``programs.SIDE``.  `run_job` returns how the job ended, None if it succeeded.  `read`
    returns the result of a program, None if there is none.  `blamed` returns the result of the program that ended the
    job, and `ended_badly` that of the last program if the job failed after all of them.
    """
    results: Dict[str, Any] = {}
    left = list(names)
    while left:
        (directory / ('programs.' + side)).write_text(json.dumps(left))
        for path in directory.glob('progress.%s.*' % side):
            path.unlink()
        ended = run_job()
        while left:
            result = read(left[0])
            if result is None:
                break
            results[left.pop(0)] = result
        if ended is None and left:
            raise RuntimeError('the job ended well without %s' % left)
        if ended is not None and left:
            name = left.pop(0)
            results[name] = blamed(name, ended)
        elif ended is not None:
            results[names[-1]] = ended_badly(results[names[-1]], ended._replace(words='at its end: ' + ended.words))
    return results


def await_end(running: Any, notes: Callable[[], List[Path]], limit_s: float) -> Any:
    """Wait until a job ends; return its result, or an Outcome if it hangs or does not end in order.

    A job hangs if none of the files that `notes` lists changes for `limit_s` seconds.
    """
    last_times, last_change = None, time.monotonic()
    while running.poll() is None:
        times = [path.stat().st_mtime_ns for path in notes()]
        if times != last_times:
            last_times, last_change = times, time.monotonic()
        elif time.monotonic() > last_change + limit_s:
            try:
                running.wait(0)
            except AssertionError as error:
                return Outcome('hangs', str(error))
        time.sleep(_POLL_S)
    try:
        return running.wait(5, grace=20)
    except AssertionError as error:
        return Outcome('dies', str(error))


def _run_job(directory: Path, side: str, job: Optional[Dict[str, Any]]) -> Optional[Outcome]:
    """Run the body to its end; return its problem, None if it succeeded."""
    job = job or {'launcher': 'none', 'workers': 1, 'servers': 1, 'row_transport': 'auto'}
    env = {'MXHYBRID_ROW_TRANSPORT': job['row_transport'], 'MXHYBRID_LOG_LEVEL': 'WARNING',
           'MXNET_STORAGE_FALLBACK_LOG_VERBOSE': '0'}
    with start_job(BODY, job['launcher'], workers=job['workers'], servers=job['servers'], args=[directory, side],
                   env=env) as running:
        result = await_end(running, lambda: _progress(directory, side), EVENT_S)
    if isinstance(result, Outcome):
        return result
    if result.returncode:
        return Outcome('dies', 'the job ended with status %d:\n%s' % (result.returncode, result.tail(60)))
    if 'Exception ignored' in result.output:
        return Outcome('dies', 'an error was swallowed:\n' + result.tail(60))
    return None


def _progress(directory: Path, side: str) -> List[Path]:
    return [path for path in sorted(directory.glob('progress.%s.*' % side)) if path.suffix != '.part']


def _of_some(directory: Path, side: str, name: str, ended: Outcome) -> Outcome:
    """Return the outcome of the program that ended the job: the error of a worker that failed alone, if any."""
    for path in sorted(directory.glob('%s.%s.*.json' % (name, side))):
        problem = json.loads(path.read_text())
        if problem:
            kind, words, event, what = problem
            return Outcome('failed', '%s in %s on worker %s only: %s' % (
                kind, what, path.name.split('.')[2], words), event)
    return ended._replace(event=_last_event(directory, side))


def _last_event(directory: Path, side: str) -> int:
    """Return the last event that the slowest worker began."""
    events = []
    for path in _progress(directory, side):
        with contextlib.suppress(ValueError):
            events.append(json.loads(path.read_text())[1])
    return min(events, default=0)


def _read(directory: Path, side: str, name: str, workers: int) -> Side:
    values, problems, mark = [], [], 'slack of '
    for rank in range(workers):
        path = directory / ('%s.%s.%d' % (name, side, rank))
        problems.append(json.loads(Path('%s.json' % path).read_text()))
        with np.load('%s.npz' % path) as file:
            values.append({key: file[key] for key in file})
        os.unlink('%s.npz' % path)
    slack = {key[len(mark):]: float(value) for key, value in values[0].items() if key.startswith(mark)}
    values = [{key: value for key, value in each.items() if not key.startswith(mark)} for each in values]
    if not any(problems):
        return Side(None, values, slack)
    kind, words, event, what = next(problem for problem in problems if problem)
    alike = all(problem == problems[0] for problem in problems)
    refused = alike and kind in _REFUSALS
    return Side(Outcome('refused' if refused else 'failed', '%s in %s%s: %s' % (
        kind, what, '' if alike else ' on some workers only', words), event), values)


# -- the verdict ---------------------------------------------------------------------------------------------------

def _event_of(name: str) -> int:
    return int(name.split('/')[0])


def _judge(program: Dict[str, Any], expected: Side, actual: Optional[Side], kind: Kind = PLAIN) -> Outcome:
    if expected.problem is not None:
        return expected.problem._replace(kind='invalid')
    assert actual is not None
    rtol, atol = kind.tolerance(program)
    outcomes = []
    for rank, values in enumerate(actual.values):
        for name, words in pieces.differences(expected.values[0], values, expected.slack, rtol, atol):
            outcomes.append(Outcome('differs', '%s on worker %d: %s' % (name, rank, words), _event_of(name)))
        for name, value in values.items():
            # Saved values have the same bits on all workers.
            if re.match(r'\d+/\d', name) and not np.array_equal(value, actual.values[0].get(name), equal_nan=True):
                outcomes.append(Outcome('workers differ', '%s on workers 0 and %d' % (name, rank), _event_of(name)))
    if actual.problem is not None:
        outcomes.append(actual.problem)
    elif not outcomes:
        missing = set(expected.values[0]) - {name for values in actual.values for name in values}
        if missing:
            outcomes.append(Outcome('differs', 'not in the job: %s' % sorted(missing)[0], _event_of(min(missing))))
    if not outcomes:
        return Outcome('same')
    order = ['dies', 'hangs', 'failed', 'refused', 'differs', 'workers differ']
    return min(outcomes, key=lambda each: (each.event, order.index(each.kind)))
