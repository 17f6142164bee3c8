"""Reads the JSON lines that a job with ``MXHYBRID_METRICS`` writes, even while the job is running."""
import contextlib
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Optional, Tuple

from ..base import json_text
from ..base.errors import InputError

#: Keys that every line must have, with the types of their values.
_NEEDED: Dict[str, Any] = {'step': int, 'store': int, 'wall': (int, float), 'seconds': (int, float),
                           'store_seconds': (int, float), 'routes': dict, 'alpha': dict, 'tables': dict}
#: The beginning of a line.
_BEGINNING = '{"step": '


@dataclass
class Run:
    """The steps of one store of one job, in order, as :class:`mxhybrid.telemetry.step_meter.StepMeter` records them."""

    store: int
    steps: List[Dict[str, Any]] = field(default_factory=list)

    @property
    def seconds(self) -> List[float]:
        """Durations of the steps; the first one includes everything before it, unless it is the only one."""
        return [step['seconds'] for step in self.steps]

    def bytes_by_route(self) -> Dict[str, List[int]]:
        """Return the bytes pushed and pulled, together, by route and step."""
        kinds = list(dict.fromkeys(kind for step in self.steps for kind in step['routes']))
        return {kind: [_moved(step['routes'].get(kind)) for step in self.steps] for kind in kinds}

    def network(self) -> Dict[str, Dict[str, List[int]]]:
        """Return the bytes that worker 0's host sent to other hosts, and received, by kind and step; {} if unknown."""
        kinds = list(dict.fromkeys(kind for step in self.steps for kind in _network(step)))
        return {kind: {direction: [_network(step).get(kind, {}).get(direction, 0) for step in self.steps]
                       for direction in ('sent', 'received')} for kind in kinds}

    def commits(self) -> List[Dict[str, Any]]:
        """Return the commits of an elastic job: seconds of the step, bytes of the commit before, generation."""
        return [step['commit'] for step in self.steps if 'commit' in step]

    def tables(self) -> List['TableSteps']:
        """Return all tables, the one with most bytes first."""
        names = dict.fromkeys(name for step in self.steps for name in step['tables'])
        tables = [TableSteps(name, [step['step'] for step in self.steps],
                             [step['tables'].get(name) for step in self.steps],
                             [step['alpha'].get(name) for step in self.steps]) for name in names]
        return sorted(tables, key=lambda table: -sum(table.moved))


@dataclass
class TableSteps:
    """A table over the steps of a run."""

    name: str
    #: Numbers of the steps.
    numbers: List[int]
    #: Route, rows and bytes in each step; None where the table was not recorded.
    counts: List[Optional[Dict[str, Any]]]
    #: Share of the rows that were pushed in each step.
    alphas: List[Optional[float]]

    @property
    def moved(self) -> List[int]:
        """The bytes pushed and pulled, together, in each step."""
        return [_moved(count) for count in self.counts]

    def mean(self, name: str) -> float:
        """Return the mean of 'rows', 'pushed' or 'pulled' over the steps that recorded the table."""
        known = [count[name] for count in self.counts if count is not None]
        return sum(known) / len(known)

    @property
    def alpha(self) -> Optional[float]:
        """The mean share of the rows that were pushed; None for a table of any number of rows."""
        known = [alpha for alpha in self.alphas if alpha is not None]
        return sum(known) / len(known) if known else None

    def routes(self) -> List[Tuple[int, str]]:
        """Return the routes of the table, each with its first step."""
        routes: List[Tuple[int, str]] = []
        for number, count in zip(self.numbers, self.counts):
            if count is not None and (not routes or routes[-1][1] != count['route']):
                routes.append((number, count['route']))
        return routes


def _network(step: Dict[str, Any]) -> Dict[str, Dict[str, int]]:
    return step.get('network', {})


def _moved(count: Optional[Dict[str, Any]]) -> int:
    return 0 if count is None else count['pushed'] + count['pulled']


def _is_step(record: Any) -> bool:
    return (isinstance(record, dict)
            and all(isinstance(record.get(name), kind) for name, kind in _NEEDED.items())
            and all(isinstance(count, dict) and {'rows', 'pushed', 'pulled'} <= set(count)
                    for count in list(record['routes'].values()) + list(record['tables'].values()))
            and all(isinstance(count.get('route'), str) for count in record['tables'].values())
            and all(isinstance(count, dict) and {'sent', 'received'} <= set(count)
                    for count in _network(record).values())
            and ('commit' not in record or isinstance(record['commit'], dict)
                 and {'seconds', 'bytes', 'generation'} <= set(record['commit'])))


def _load(line: str) -> Tuple[Any, bool]:
    """Return the value of a line, or None if it has none, and whether the whole line is valid."""
    # A job that is killed leaves half a line, and the next job writes after it.
    for begin in (0, max(0, line.rfind(_BEGINNING))):
        with contextlib.suppress(ValueError):
            return json_text.parse(line[begin:]), begin == 0
    return None, False


def parse(lines: Iterable[str], source: str) -> Tuple[List[Run], int]:
    """Sort the lines of a metrics file into runs, in the order of their beginnings; return these, and the number of
    incomplete lines.

    Jobs append to a file, so it may hold several of them, and each may have several stores.  A store's steps count up
    from 1: a lower number means that another job has begun.  Incomplete lines, such as the last one while a job writes
    it, are left out.  Raises InputError, which names the `source`, if another line is no step, or no line is a step.
    """
    runs: List[Run] = []
    current: Dict[int, Run] = {}
    broken = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        record, whole = _load(line)
        broken += not whole
        if record is None and not whole:
            continue
        if not _is_step(record):
            raise InputError('%s: line %d is not a step: give a file that MXHYBRID_METRICS has written'
                             % (source, number))
        run = current.get(record['store'])
        if run is None or record['step'] <= run.steps[-1]['step']:
            if run is not None:
                current = {}  # the job before has ended, and with it all of its stores
            run = current[record['store']] = Run(record['store'])
            runs.append(run)
        run.steps.append(record)
    if broken and not runs:
        raise InputError('%s has no step in it: give a file that MXHYBRID_METRICS has written' % source)
    return runs, broken


def read(path: str) -> Tuple[List[Run], int]:
    """Read a metrics file, see :func:`parse`.

    Raises InputError if the file cannot be read, is not a metrics file, or has no steps yet.
    """
    try:
        with open(path, encoding='utf-8', errors='replace') as lines:
            runs, broken = parse(lines, path)
    except OSError as error:
        raise InputError('%s cannot be read: %s' % (path, error.strerror or error)) from error
    if not runs:
        raise InputError('%s has no steps yet: wait for the first step of a Trainer, after which a line is written'
                         % path)
    return runs, broken
