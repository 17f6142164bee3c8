"""Runs programs with MXNet alone and in a job, many of them in the same processes, and compares."""
import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, Hashable, List, NamedTuple, Optional, Tuple

import numpy as np

from lab.jobs import start_job

from . import pieces, shrinking
from .body import REFUSALS
from .drawing import PER_JOB, draw
from .program import tolerance
from .script import commands, standing_alone

BODY = Path(__file__).resolve().parent / 'body.py'

#: Seconds that a worker may take from one event to the next, or to start.
EVENT_S = 90.0

_POLL_S = 0.1

#: Changes a script.
Alter = Callable[[str], str]


class Kind(NamedTuple):
    """A kind of programs: how they are drawn, written, compared and made small."""

    name: str
    draw: Callable[[int], Dict[str, Any]]
    #: Programs with following seeds that share a job.
    per_job: int
    standing_alone: Callable[..., str]
    commands: Callable[[Dict[str, Any], str], List[str]]
    tolerance: Callable[[Dict[str, Any]], Any]
    structures: shrinking.Structures
    changes: shrinking.Changes


PLAIN = Kind('fuzz', draw, PER_JOB, standing_alone, commands, tolerance, shrinking.plain_structures,
             shrinking.plain_changes)


class Outcome(NamedTuple):
    """The outcome of a program."""

    #: 'same'; 'differs', from MXNet alone; 'workers differ', from each other; 'refused', by mxhybrid; 'failed', with
    #: another error; 'hangs'; 'dies'; 'invalid', if MXNet alone fails.
    kind: str
    #: The difference or the error.
    words: str = ''
    #: The event at which the program fails, counted from 1; 0 before the first event and if it is not known.
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
    """Run programs; programs with the same job settings share a job."""
    return run_in_groups(programs, lambda program: repr(sorted(program['job'].items())),
                         lambda some: run(some, alter, kind))


def run_in_groups(programs: List[Dict[str, Any]], key: Callable[[Dict[str, Any]], Hashable],
                  run_group: Callable[[List[Dict[str, Any]]], List[Outcome]]) -> List[Outcome]:
    """Run programs with equal keys together, by `run_group`; return the outcomes in the order of the programs."""
    groups: Dict[Hashable, List[int]] = {}
    for number, program in enumerate(programs):
        groups.setdefault(key(program), []).append(number)
    outcomes: Dict[int, Outcome] = {}
    for numbers in groups.values():
        outcomes.update(zip(numbers, run_group([programs[number] for number in numbers])))
    return [outcomes[number] for number in range(len(programs))]


def run(programs: List[Dict[str, Any]], alter: Optional[Alter] = None, kind: Kind = PLAIN) -> List[Outcome]:
    """Run programs that share the settings of a job, in their order.

    `alter` changes the scripts that the job runs, to plant a difference.
    """
    with tempfile.TemporaryDirectory(prefix='mxhybrid-fuzz-') as folder:
        directory = Path(folder)
        scripts = {'%03d' % number: kind.standing_alone([program]) for number, program in enumerate(programs)}
        for name, source in scripts.items():
            (directory / (name + '.py')).write_text(source)
        expected = _run_side(directory, 'mxnet', list(scripts), None)
        for name, source in scripts.items() if alter is not None else ():
            (directory / (name + '.py')).write_text(alter(source))
        valid = [name for name in scripts if expected[name].problem is None]
        sides = _run_side(directory, 'job', valid, programs[0]['job'])
        moving = [name for name, program in zip(scripts, programs) if name in sides and sides[name].problem is None
                  and any(event['do'] == 'move' for event in program['events'])]
        if moving:  # which go on in another job
            for name, side in _run_side(directory, 'moved', moving, programs[0]['job']['next']).items():
                sides[name] = Side(side.problem, sides[name].values + side.values)
        return [_judge(program, expected[name], sides.get(name), kind) for name, program in zip(scripts, programs)]


# -- one side ------------------------------------------------------------------------------------------------------

def _run_side(directory: Path, side: str, names: List[str], job: Optional[Dict[str, Any]]) -> Dict[str, Side]:
    """Run programs in one job, or, after one that ends it, in another."""
    job = job or {'launcher': 'none', 'workers': 1, 'servers': 1, 'row_transport': 'auto'}
    return run_in_jobs(directory, side, names, lambda: _run_job(directory, side, job),
                       lambda name: _read(directory, side, name, job['workers']),
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


def await_end(running: Any, notes: Callable[[], List[Path]], limit_s: float) -> Tuple[Optional[Outcome], str]:
    """Wait until a job ends; return its problem, None if it succeeded, and its output.

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
                return Outcome('hangs', str(error)), ''
        time.sleep(_POLL_S)
    try:
        result = running.wait(5, grace=20)
    except AssertionError as error:
        return Outcome('dies', str(error)), ''
    problem = 'the job ended with status %d:\n%s' % (result.returncode, _cause(result.output))
    return Outcome('dies', problem) if result.returncode else None, result.output


def _cause(output: str) -> str:
    """Return the last output of the workers, without Horovod's report of their ends."""
    by_workers = [line for line in output.splitlines() if re.match(r'\[\d+\]<', line)]
    return '\n'.join((by_workers or output.splitlines())[-60:])


def _run_job(directory: Path, side: str, job: Dict[str, Any]) -> Optional[Outcome]:
    """Run the body to its end; return its problem, None if it succeeded."""
    env = {'MXHYBRID_ROW_TRANSPORT': job['row_transport'], 'MXHYBRID_LOG_LEVEL': 'WARNING',
           'MXNET_STORAGE_FALLBACK_LOG_VERBOSE': '0'}
    with start_job(BODY, job['launcher'], workers=job['workers'], servers=job['servers'], args=[directory, side],
                   env=env) as running:
        problem, output = await_end(running, lambda: _progress(directory, side), EVENT_S)
    if problem is None and 'Exception ignored' in output:
        problem = Outcome('dies', 'an error was swallowed:\n' + _cause(output))
    return problem


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
    # The last event that the slowest worker began.
    events = [json.loads(path.read_text())[1] for path in _progress(directory, side)]
    return ended._replace(event=min(events, default=0))


def _read(directory: Path, side: str, name: str, workers: int) -> Optional[Side]:
    """Return the result of a program; None if a worker has not left one."""
    values, problems, mark = [], [], 'slack of '
    paths = [str(directory / ('%s.%s.%d' % (name, side, rank))) for rank in range(workers)]
    if not all(Path(path + '.json').exists() for path in paths):
        return None
    for path in paths:
        problems.append(json.loads(Path(path + '.json').read_text()))
        with np.load(path + '.npz') as file:
            values.append(dict(file))
        Path(path + '.npz').unlink()
    slack = {key[len(mark):]: float(value) for key, value in values[0].items() if key.startswith(mark)}
    values = [{key: value for key, value in each.items() if not key.startswith(mark)} for each in values]
    if not any(problems):
        return Side(None, values, slack)
    kind, words, event, what = next(problem for problem in problems if problem)
    alike = all(problem == problems[0] for problem in problems)
    refused = alike and kind in REFUSALS
    return Side(Outcome('refused' if refused else 'failed', '%s in %s%s: %s' % (
        kind, what, '' if alike else ' on some workers only', words), event), values)


# -- the verdict ---------------------------------------------------------------------------------------------------

def _judge(program: Dict[str, Any], expected: Side, actual: Optional[Side], kind: Kind = PLAIN) -> Outcome:
    """Return the outcome of a program: its first problem, or 'same'."""
    if expected.problem is not None:
        return expected.problem._replace(kind='invalid')
    assert actual is not None
    outcomes = [] if actual.problem is None else [actual.problem]

    def add(outcome_kind: str, words: str, name: str) -> None:
        outcomes.append(Outcome(outcome_kind, words, int(name.split('/')[0])))
    for rank, values in enumerate(actual.values):
        for name, words in pieces.differences(expected.values[0], values, expected.slack, *kind.tolerance(program)):
            add('differs', '%s on worker %d: %s' % (name, rank, words), name)
        for name, value in values.items():
            # Saved values have the same bits on all workers.
            if re.match(r'\d+/\d', name) and not np.array_equal(value, actual.values[0].get(name), equal_nan=True):
                add('workers differ', '%s on workers 0 and %d' % (name, rank), name)
    missing = set(expected.values[0]).difference(*actual.values)
    if missing and not outcomes:
        add('differs', 'not in the job: %s' % min(missing), min(missing))
    order = ['dies', 'hangs', 'failed', 'refused', 'differs', 'workers differ']
    return min(outcomes, key=lambda each: (each.event, order.index(each.kind)), default=Outcome('same'))
