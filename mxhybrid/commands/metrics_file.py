"""Reads the lines of JSON that a job with ``MXHYBRID_METRICS`` writes, also while it does."""
import json
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Optional, Tuple

from ..base.errors import InputError

#: What a line must have, and the types of it.
_NEEDED: Dict[str, Any] = {'step': int, 'store': int, 'wall': (int, float), 'seconds': (int, float),
                           'store_seconds': (int, float), 'routes': dict, 'alpha': dict}

#: How a line begins.
_BEGINNING = '{"step": '


@dataclass
class Run:
    """The steps of one store of one job in order, as :class:`mxhybrid.telemetry.step_meter.StepMeter` makes them."""

    store: int
    steps: List[Dict[str, Any]] = field(default_factory=list)

    @property
    def seconds(self) -> List[float]:
        """Durations of the steps; the first includes what happened before it, unless it is the only one."""
        return [step['seconds'] for step in self.steps]

    def bytes_by_route(self) -> Dict[str, List[int]]:
        """Bytes pushed and pulled, together, by route and step."""
        kinds = list(dict.fromkeys(kind for step in self.steps for kind in step['routes']))
        return {kind: [_moved(step['routes'].get(kind)) for step in self.steps] for kind in kinds}

    def network(self) -> Dict[str, Dict[str, List[int]]]:
        """Bytes between worker 0's host and others by what they are for, sent and received, by step; empty where nobody
        counted.
        """
        kinds = list(dict.fromkeys(kind for step in self.steps for kind in _network(step)))
        return {kind: {way: [_network(step).get(kind, {}).get(way, 0) for step in self.steps]
                       for way in ('sent', 'received')} for kind in kinds}

    def tables(self) -> List['TableSteps']:
        """Every table, in order of their bytes."""
        names = dict.fromkeys(name for step in self.steps for name in {**step['alpha'], **_tables(step)})
        found = [TableSteps(name, [step['step'] for step in self.steps],
                            [_tables(step).get(name) for step in self.steps],
                            [step['alpha'].get(name) for step in self.steps]) for name in names]
        return sorted(found, key=lambda table: -sum(table.moved))


@dataclass
class TableSteps:
    """One table over the steps of a run: their numbers, with the route, rows and bytes of each, None where nothing was
    recorded of the table, and the part of its rows that were pushed.
    """

    name: str
    numbers: List[int]
    counts: List[Optional[Dict[str, Any]]]
    alphas: List[Optional[float]]

    @property
    def moved(self) -> List[int]:
        """Bytes pushed and pulled, together, of each step."""
        return [_moved(count) for count in self.counts]

    def mean(self, name: str) -> float:
        """Mean of 'rows', 'pushed' or 'pulled' over the steps that recorded the table."""
        known = [count[name] for count in self.counts if count is not None]
        return sum(known) / max(1, len(known))

    @property
    def alpha(self) -> float:
        """Mean part of the rows that were pushed."""
        known = [alpha for alpha in self.alphas if alpha is not None]
        return sum(known) / max(1, len(known))

    def routes(self) -> List[Tuple[int, str]]:
        """Ways that the table took, each with the first step of it."""
        found: List[Tuple[int, str]] = []
        for number, count in zip(self.numbers, self.counts):
            if count is not None and (not found or found[-1][1] != count['route']):
                found.append((number, count['route']))
        return found


def _tables(step: Dict[str, Any]) -> Dict[str, Any]:
    return step.get('tables', {})


def _network(step: Dict[str, Any]) -> Dict[str, Dict[str, int]]:
    return step.get('network', {})


def _moved(count: Optional[Dict[str, Any]]) -> int:
    return 0 if count is None else count['pushed'] + count['pulled']


def _is_step(record: Any) -> bool:
    return (isinstance(record, dict)
            and all(isinstance(record.get(name), kind) for name, kind in _NEEDED.items())
            and all(isinstance(count, dict) and {'rows', 'pushed', 'pulled'} <= set(count)
                    for count in list(record['routes'].values()) + list(_tables(record).values()))
            and all(isinstance(count.get('route'), str) for count in _tables(record).values())
            and all(isinstance(ways, dict) and {'sent', 'received'} <= set(ways) for ways in _network(record).values()))


def _load(line: str) -> Tuple[Any, bool]:
    """The value of a line, None if it has none, and whether all of the line was good."""
    try:
        return json.loads(line), True
    except ValueError:
        pass
    # A job that is killed leaves half a line, and the next one writes behind it.
    at = line.rfind(_BEGINNING)
    try:
        return (json.loads(line[at:]) if at > 0 else None), False
    except ValueError:
        return None, False


def parse(lines: Iterable[str], source: str) -> Tuple[List[Run], int]:
    """Sort the lines of a metrics file into runs, by their beginnings; `source` names it in messages.

    A file is appended to, so it may hold several jobs, and each may have several stores.  A store's steps count up from
    1: a lower number means that another job has begun.  Lines that are not whole, as the last one is while a job writes
    it, are left out and counted; one that is something else than a step is an InputError.
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
            raise InputError('%s: line %d is not a step as MXHYBRID_METRICS writes it: is this another file?'
                             % (source, number))
        run = current.get(record['store'])
        if run is None or record['step'] <= run.steps[-1]['step']:
            if run is not None:
                current = {}  # the stores of the job before do not go on either
            run = current[record['store']] = Run(record['store'])
            runs.append(run)
        run.steps.append(record)
    if broken and not runs:
        raise InputError('%s holds no step as MXHYBRID_METRICS writes it: is this another file?' % source)
    return runs, broken


def read(path: str) -> Tuple[List[Run], int]:
    """Read a metrics file as :func:`parse` does; InputError where it is another file, or has no step yet."""
    try:
        with open(path, encoding='utf-8', errors='replace') as lines:
            runs, broken = parse(lines, path)
    except OSError as error:
        raise InputError('%s cannot be read: %s' % (path, error.strerror or error)) from error
    if not runs:
        raise InputError('%s has no steps yet: a job with MXHYBRID_METRICS writes a line after each step of a Trainer'
                         % path)
    return runs, broken
