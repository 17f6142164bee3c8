"""All cases: a fault, its victim, its moment, and the expected reaction of the job."""
import fnmatch
import itertools
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

#: Seconds after which silence ends a job of the suite; such a job gets a second more to notice, and then to end.
SILENCE_S = 6.0

#: Seconds that all may wait for a worker which is alive, where that must end the job.
STALL_S = 9.0

#: Seconds that a job may take to start, where somebody does not come.
START_S = 25.0

#: Seconds until the other processes have come to where they wait for it, all importing MXNet at the same time.
IMPORT_S = 30.0

#: Seconds in which a job must be over after a death.
DEATH_S = 10.0

#: The moments of a job, in order.
MOMENTS = ('start', 'first', 'mid', 'saving', 'exit')

#: The moments of cases with dynamic tables: rows are looked up, inserted or removed, or a delta is written.
TABLE_MOMENTS = ('lookup', 'inserting', 'expiring', 'delta')

#: The moments of elastic jobs, which go on after the fault: before the State is made, in a step, when all files of a
#: commit but the last one are written, and when a part of a commit is restored, after another fault.
ELASTIC_MOMENTS = ('elastic-start', 'elastic-step', 'elastic-commit', 'elastic-restore')

#: Milliseconds after the step of a moment of `TABLE_MOMENTS` has begun.
TABLE_DELAY_MS = 10

#: Milliseconds after a step with large pushes has begun: they are written, merged and sent, and the next one begins.
DELAYS_MS = (10, 40, 90)

#: Seconds after that on a slow link: it takes many more to send them.
SENDING_S = 1.5

#: Two workers on each of two hosts; by place, as the suite calls them.
WORKERS = {'worker0': 0, 'worker1': 1, 'worker2': 2, 'worker3': 3}
HOSTS = {'a': 0, 'b': 1}


class Case(NamedTuple):
    """A case: a fault, a moment and a job."""

    #: 'kill', 'stop', 'raise', 'cut', 'slow', 'full', 'term', 'int', 'none'; 'away', a worker that comes late, 'lost',
    #: one that never comes; 'memory', 'files', a process that is refused more memory, or larger files.
    fault: str
    #: 'worker0' ... 'worker3', 'server-a', 'server-b' (on which host), 'scheduler', 'launcher', 'link-a', 'link-b',
    #: 'host-a', 'host-b', 'keeper-a', 'keeper-b'; of a full disk what is written there: 'checkpoint', 'parameters',
    #: 'states', 'metrics' or 'trace', 'rows', the files of dynamic tables, or 'shm-a', shared memory that has names.
    target: str
    #: One of `MOMENTS`; 'pushing+10', 10 milliseconds into a step with large pushes; 'sending', while one of these is
    #: on a slow link; 'growing', before a large table is made, 'filling', before many rows are pushed to it; one of
    #: `TABLE_MOMENTS`, also with milliseconds; one of `ELASTIC_MOMENTS`.
    moment: str

    @property
    def name(self) -> str:
        """Return the name, as given to ``--only``."""
        return '%s/%s/%s' % self

    @property
    def has_tables(self) -> bool:
        """Return whether the job has dynamic tables, and is resumed from its checkpoint after the fault."""
        return self.moment.partition('+')[0] in TABLE_MOMENTS

    @property
    def is_elastic(self) -> bool:
        """Return whether `mxhybrid run` starts the job, with dynamic tables, and again after the fault."""
        return self.moment in ELASTIC_MOMENTS

    @property
    def training(self) -> Tuple[bool, bool]:
        """Return whether the body trains dynamic tables, and `keeps_rows`: the weights depend on them."""
        return self.has_tables or self.is_elastic, self.keeps_rows

    @property
    def generations(self) -> str:
        """Return the numbers of generations, one of which is the last one of an elastic job."""
        if self.target.startswith('keeper'):
            return '12' if self.moment == 'elastic-restore' else '0'
        return '2' if self.moment == 'elastic-restore' else '1'

    @property
    def keeps_rows(self) -> bool:
        """Return whether no row expires: host b does not see the small disk, so worker 0 saves its rows, and a
        checkpoint then has no ages of rows (docs/checkpoints.md).
        """
        return (self.fault, self.target) == ('full', 'checkpoint') and self.has_tables

    @property
    def rank(self) -> Optional[int]:
        """Return the rank of the worker that is hit, None for other targets."""
        return WORKERS.get(self.target)

    @property
    def host(self) -> Optional[int]:
        """Return the index of the host that is hit, if the target's name says so."""
        return HOSTS.get(self.target[-1]) if self.target[-2:-1] == '-' else None

    @property
    def place(self) -> Optional[int]:
        """Return the index of the host of the victim, if there is one."""
        return self.host if self.rank is None else self.rank // 2

    @property
    def delay(self) -> float:
        """Return the seconds from the moment to the fault, in which training goes on."""
        return SENDING_S if self.moment == 'sending' else float(self.moment.partition('+')[2] or 0) / 1000

    @property
    def must_end_well(self) -> bool:
        """Return whether the job has to finish, with the right weights, in spite of the fault."""
        return (self.fault in ('slow', 'none', 'away') or self.target in ('metrics', 'trace', 'shm-a')
                or self.is_elastic)

    @property
    def silent(self) -> bool:
        """Return whether the fault breaks no connection."""
        return self.fault in ('stop', 'cut')

    @property
    def limit(self) -> float:
        """Return the seconds in which the job must be over after the fault."""
        if self.must_end_well:
            return 120.0
        if self.fault == 'lost':
            return STALL_S + DEATH_S
        seconds = DEATH_S + (IMPORT_S if self.moment == 'start' else 0.0)
        if self.silent:
            seconds += START_S if self.moment == 'start' else SILENCE_S
        return seconds

    @property
    def environment(self) -> Dict[str, str]:
        """Return the settings of the job."""
        values = {'MXHYBRID_SERVERS_PER_HOST': '2', 'MXHYBRID_TIMEOUT': '60'}
        if self.silent or self.fault in ('away', 'lost', 'slow'):
            values['MXHYBRID_SILENCE_TIMEOUT'] = '%g' % SILENCE_S
        if self.silent and self.moment == 'start':
            values['MXHYBRID_TIMEOUT'] = '%g' % START_S
        if self.moment not in MOMENTS and not self.has_tables and not self.is_elastic:
            values['MXHYBRID_ROUTES'] = 'servers'  # which large tables would not surely take
        if self.fault == 'lost':
            values['MXHYBRID_STALL_TIMEOUT'] = '%g' % STALL_S
        return values

    @property
    def announcers(self) -> Tuple[int, ...]:
        """Return the ranks of the workers that announce the moment."""
        if self.moment == 'saving':
            return (0,)
        if self.rank is not None and not self.delay:
            return (self.rank,)
        # At the start the launcher, or an ssh of its own, might fail by itself before there is a worker on hostb.
        early = self.moment == 'start' and (self.target == 'launcher' or self.fault == 'cut')
        return (0, 1, 2, 3) if early or self.delay or self.moment == 'exit' else (0,)

    @property
    def holds(self) -> bool:
        """Return whether workers wait at the moment until the fault has happened, or train meanwhile."""
        return self.rank is not None or self.moment not in ('mid', 'delta')

    @property
    def lasts(self) -> bool:
        """Return whether training goes on until the fault ends it."""
        return bool(self.delay) or not self.holds and not self.must_end_well


def _all() -> Iterator[Case]:
    """Yield all cases: for some faults, targets and moments, all combinations."""
    servers, pushing = ['server-a', 'server-b'], ['pushing+%d' % delay for delay in DELAYS_MS]
    growing, expiring = ['%s+%d' % (moment, TABLE_DELAY_MS) for moment in ('inserting', 'expiring')]
    for faults, targets, moments in (
            (['none'], ['host-a'], ['mid']),
            (['kill', 'stop'], [*WORKERS, *servers, 'scheduler'], MOMENTS),
            (['raise'], WORKERS, MOMENTS),
            (['raise'], ['server-a'], ['first', 'mid', 'saving']),
            (['kill', 'term', 'int'], ['launcher'], MOMENTS),
            (['cut'], ['link-a', 'link-b'], MOMENTS),
            (['slow'], ['host-a', 'host-b'], ['first']),
            (['full'], ['checkpoint', 'parameters', 'states'], ['saving']),
            (['full'], ['metrics', 'trace'], ['mid']),
            (['full'], ['shm-a'], ['start']),
            (['away', 'lost'], ['worker0', 'worker2'], ['mid']),
            (['kill'], [*servers, 'worker1', 'worker3'], pushing),
            (['stop'], servers, pushing[:2]),
            (['kill'], [*servers, 'worker0'], ['sending']),
            (['memory', 'files'], [*servers, 'worker0', 'worker3'], ['growing']),
            (['memory'], servers, ['filling']),
            (['kill'], servers, [growing, expiring, 'delta']),
            (['stop'], ['server-a'], [growing]),
            (['stop'], ['server-b'], [expiring]),
            (['kill'], ['worker1', 'worker2'], ['lookup']),
            (['stop'], ['worker3'], ['lookup']),
            (['full'], ['rows'], ['inserting']),
            (['full'], ['checkpoint'], ['delta']),
            (['kill'], ['worker0', 'worker2', *servers, 'scheduler', 'keeper-a', 'keeper-b'], ELASTIC_MOMENTS)):
        yield from itertools.starmap(Case, itertools.product(faults, targets, moments))


CASES = list(_all())


def select(patterns: List[str]) -> List[Case]:
    """Return the cases whose names match any of the shell patterns; all cases if there are no patterns."""
    return [case for case in CASES
            if not patterns or any(fnmatch.fnmatchcase(case.name, pattern) for pattern in patterns)]
