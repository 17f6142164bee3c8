"""The best choice for each operator, by a guided random walk (Markov chain Monte Carlo), or by trying all.

The walk is that of FlexFlow (Jia, Zaharia, Aiken: Beyond Data and Model Parallelism for Deep Neural Networks, MLSys
2019): a proposal is taken with the chance min(1, exp(beta * (old - new))).  It goes in waves, each from the best plan
so far, in which beta grows.  The first ones begin with a large beta and only go down; later ones begin with a smaller
one each, so that they leave the valley.  What is large is measured by how much worse proposals are.

Chance is asked first: most proposals are known to be refused long before it is known what they take.

Walks from several plans share a budget, of which those have less that begin far behind the fastest.
"""
import dataclasses
import math
import random
import time
from typing import Callable, Dict, Hashable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ...base.errors import InputError
from .gc_control import paused_gc
from .pareto import ParetoFront, Point
from .search_problem import Assignment, SearchProblem

#: 1 / beta at the begin of each wave, and its share of that at the end; in units of what worse proposals cost.
_HEATS, _COOLED = (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0), 0.01
#: What they cost before any was seen, as a share of what the start takes.
_FIRST_GUESS = 0.01
#: Proposals of a wave, for each operator, and at least.
_WAVE, _SHORTEST_WAVE = 4, 50
#: How often proposals are a single operator's, or a neighbour's choice; the others are of several neighbours.
_SINGLE, _COPY = 0.3, 0.1
#: How many times as long as at the fastest start a step takes at one that is far behind, and what such a walk has of
#: the budget of others.
_FAR, _FAR_SHARE = 1.5, 0.25
#: Operators that a proposal changes at most: what changes is what takes time to simulate.
_LONGEST_RUN = 8
_MOST_COMBINATIONS = 1_000_000


@dataclasses.dataclass(frozen=True)
class SearchLimits:
    """When a search ends, and what it may find.

    Attributes
    ----------
    seconds : float or None
    proposals : int or None
    stale : int or None
        Ends the walk from a start after so many proposals without gain.
    memory : float or None
        Bytes that no rank of a plan may exceed.
    """

    seconds: Optional[float] = None
    proposals: Optional[int] = None
    stale: Optional[int] = None
    memory: Optional[float] = None


class Progress(NamedTuple):
    """How far a search is: after `proposals` from the start of this name, in `elapsed` seconds."""

    start: str
    proposals: int
    elapsed: float
    best: float


class Chain(NamedTuple):
    """What came of a start: seconds of its own plan and of the best on the way, infinite where none fits in memory."""

    start: str
    seconds: float
    best: float
    proposals: int
    accepted: int
    #: 'seconds', 'proposals', 'stale', 'stopped' by who watches, 'no choice' where there is none, or 'same' where
    #: another walk has this start.
    ended: str


class SearchResult(NamedTuple):
    """What a search has found.

    Attributes
    ----------
    assignment : tuple
        The fastest plan within the memory allowed.
    seconds, bytes : float
        Of a step with it, and of the fullest rank.
    front : list of Point
        Plans seen of which no other is better in time and memory; also those beyond the memory allowed.
    chains : list of Chain
    elapsed : float
        Seconds that the search took.
    """

    assignment: Assignment
    seconds: float
    bytes: float
    front: List[Point]
    chains: List[Chain]
    elapsed: float


Watcher = Callable[[Progress], Optional[bool]]


def run_chains(problem: SearchProblem, starts: Mapping[str, Assignment], limits: SearchLimits, seed: int = 0,
                  watcher: Optional[Watcher] = None) -> SearchResult:
    """Search from several plans, and share the time and the proposals allowed among them, with less for those that are
    far slower.

    Parameters
    ----------
    problem : SearchProblem
    starts : mapping of str to tuple
        Plans by name.  All are evaluated, whatever the limits, so that the outcome is none that is worse; walks begin
        at the fastest.  What a walk leaves over goes to those after it.  Of those that are equal the first one walks.
    limits : SearchLimits
        At least one of `seconds`, `proposals` and `stale`.
    seed : int
        The same seed gives the same outcome, unless time ends it.
    watcher : callable, optional
        Called with a :class:`Progress` after each proposal; ends the search if it returns something true.

    Raises
    ------
    InputError
        For limits that never end it, and where no plan was found within the memory allowed.
    """
    if limits.seconds is None and limits.proposals is None and limits.stale is None:
        raise InputError('limits: a search without seconds, proposals and stale never ends: give one of them')
    if not starts:
        raise InputError('starts: give at least one plan')
    record = _Record(problem, limits)
    with paused_gc():
        walkers: Dict[Assignment, _ChainRunner] = {}
        same = []
        for number, (name, assignment) in enumerate(starts.items()):
            if assignment in walkers:
                same.append(Chain(name, walkers[assignment].seconds, walkers[assignment].seconds, 0, 0, 'same'))
                continue
            walkers[assignment] = _ChainRunner(record, name, assignment, random.Random('%d/%d' % (seed, number)), watcher)
        going = sorted(walkers.values(), key=lambda walker: walker.seconds)
        fastest = going[0].seconds if math.isinf(record.best) else record.best
        shares = [1.0 if walker.seconds <= _FAR * fastest else _FAR_SHARE for walker in going]
        walks = [walker.walk(*record.share(shares[at] / sum(shares[at:]))) for at, walker in enumerate(going)]
    return record.discovery(sorted(walks + same, key=lambda walk: walk.seconds))


def try_all(problem: SearchProblem, limits: SearchLimits = SearchLimits()) -> SearchResult:  # noqa: B008
    """Search by trying all combinations, each of which differs from the one before in one operator.

    Parameters
    ----------
    problem : SearchProblem
    limits : SearchLimits
        Only its `memory` counts.

    Raises
    ------
    InputError
        For more than a million combinations, and where none keeps to the memory allowed.
    """
    choices = [list(problem.candidates(operator)) for operator in range(problem.operators)]
    count = math.prod(map(len, choices))
    if count > _MOST_COMBINATIONS:
        raise InputError('problem: %d combinations are too many to try all: search with run_chains()' % count)
    record = _Record(problem, limits)
    now: List[Hashable] = [found[0] for found in choices]
    first = problem.begin(tuple(now))
    record.see(first, problem.memory(), now, {})
    for operator, choice in _one_at_a_time([len(found) for found in choices]):
        changes = {operator: choices[operator][choice]}
        record.see(problem.propose(changes), problem.memory(), now, changes)
        problem.accept()
        now[operator] = choices[operator][choice]
        record.proposals += 1
    return record.discovery([Chain('all', first, record.best, record.proposals, record.proposals, 'no choice')])


def _one_at_a_time(counts: Sequence[int]) -> Iterator[Tuple[int, int]]:
    """Changes, place and digit, that lead through all numbers of so many digits (a reflected Gray code)."""
    digits, steps = [0] * len(counts), [1] * len(counts)
    while True:
        for place, count in enumerate(counts):
            digit = digits[place] + steps[place]
            if 0 <= digit < count:
                digits[place] = digit
                yield place, digit
                break
            steps[place] = -steps[place]
        else:
            return


class _Record:
    """All that was seen, and what is left of the budget."""

    def __init__(self, problem: SearchProblem, limits: SearchLimits):
        self.problem = problem
        self.limits = limits
        self.proposals = 0
        self.is_stopped = False
        self.best = math.inf
        self._found: Optional[Point] = None
        self._front = ParetoFront()
        self._began = time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def limit(self, size: float) -> float:
        """Beyond so many seconds a plan of this size is no discovery."""
        return math.inf if self._found is None and self.fits(size) else self._front.least_seconds(size)

    def share(self, part: float) -> Tuple[float, float]:
        """When a walk has to end that has a part of what is left, and how many proposals it has."""
        seconds, proposals = self.limits.seconds, self.limits.proposals
        return (math.inf if seconds is None else self.elapsed + part * max(0.0, seconds - self.elapsed),
                math.inf if proposals is None else int(part * (proposals - self.proposals) + 1e-9))

    def fits(self, size: float) -> bool:
        return self.limits.memory is None or size <= self.limits.memory

    def see(self, seconds: float, size: float, now: Sequence[Hashable], changes: Mapping[int, Hashable]) -> None:
        """A plan: `now` with changes."""
        def assignment() -> Assignment:
            return tuple(changes.get(operator, choice) for operator, choice in enumerate(now))

        self._front.add(seconds, size, assignment)
        if self.fits(size) and (self._found is None or seconds < self.best):
            self.best = seconds
            self._found = Point(size, seconds, assignment())

    def discovery(self, chains: List[Chain]) -> SearchResult:
        front = self._front.points()
        if self._found is None:
            raise InputError('memory: no plan was found with which each rank needs at most %.0f bytes, as was allowed, '
                             'or as memory_bytes of its host in the cluster file says; the least seen is %.0f: allow '
                             'that, correct the file, or take more ranks' % (self.limits.memory or 0, front[0].bytes))
        return SearchResult(self._found.assignment, self._found.seconds, self._found.bytes, front, walks, self.elapsed)


class _ChainRunner:
    """A walk from one start."""

    def __init__(self, record: _Record, name: str, start: Assignment, source: random.Random,
                 watcher: Optional[Watcher]):
        self._record, self._problem = record, record.problem
        self._name, self._start = name, start
        self._random, self._watcher = source, watcher
        operators = range(self._problem.operators)
        if len(start) != len(operators):
            raise InputError('start %s: it has %d choices for %d operators' % (name, len(start), len(operators)))
        self._choices = [list(self._problem.candidates(operator)) for operator in operators]
        self._allowed = [frozenset(choices) for choices in self._choices]
        self._free = [operator for operator in operators if len(self._choices[operator]) > 1]
        self._now: List[Hashable] = list(start)
        self.seconds = self._seconds = self._problem.begin(start)
        self._size = self._problem.memory()
        record.see(self.seconds, self._size, self._now, {})
        self._best = self.seconds if record.fits(self._size) else math.inf
        self._best_assignment = start
        #: How many proposals were slower, and the sum of the logarithms of by how much.
        self._worse, self._log_worse = 1, math.log(_FIRST_GUESS * self.seconds)

    def walk(self, until: float, most: float) -> Chain:
        """For as long as `until`, of the search's seconds, or for so many proposals."""
        wave = max(_SHORTEST_WAVE, _WAVE * len(self._free))
        proposals = accepted = 0
        best_at = 0
        ended = self._end(0, 0, until, most)
        while not ended:
            if proposals % wave == 0:
                self._return_to_best()
            heat = _HEATS[proposals // wave % len(_HEATS)] * _COOLED ** (proposals % wave / wave)
            proposals += 1
            self._record.proposals += 1
            best = self._best
            accepted += self._try(self._draw(), heat)
            if self._best < best:
                best_at = proposals
            if self._watcher is not None:
                self._record.is_stopped |= bool(self._watcher(Progress(
                    self._name, self._record.proposals, self._record.elapsed, self._record.best)))
            ended = self._end(proposals, proposals - best_at, until, most)
        return Chain(self._name, self.seconds, self._best, proposals, accepted, ended)

    def _end(self, proposals: int, stale: int, until: float, most: float) -> str:
        """Why to end now; empty to go on."""
        limit = self._record.limits.stale
        reasons = (('no choice', not self._free), ('stopped', self._record.is_stopped),
                   ('proposals', proposals >= most), ('stale', limit is not None and stale >= limit),
                   ('seconds', self._record.elapsed >= until))
        return next((reason for reason, holds in reasons if holds), '')

    def _return_to_best(self) -> None:
        self._now = list(self._best_assignment)
        self._seconds = self._problem.begin(self._best_assignment)
        self._size = self._problem.memory()

    def _try(self, changes: Dict[int, Hashable], heat: float) -> bool:
        """Whether a proposal was taken."""
        chance = -math.log(1 - self._random.random())
        most = self._seconds + chance * heat * math.exp(self._log_worse / self._worse)
        seconds = self._problem.propose(changes, lambda size: max(self._record.limit(size), self._takes(size, most)))
        size = self._problem.memory()
        self._record.see(seconds, size, self._now, changes)
        more = seconds - self._seconds
        if 0 < more < math.inf and self._record.fits(self._size) and self._record.fits(size):
            self._worse += 1
            self._log_worse += math.log(more)
        if not seconds <= self._takes(size, most):
            self._problem.reject()
            return False
        self._problem.accept()
        self._seconds, self._size = seconds, size
        for operator, choice in changes.items():
            self._now[operator] = choice
        fits = self._record.fits(size)
        if seconds < self._best if fits else math.isinf(self._best):
            self._best_assignment = tuple(self._now)
            self._best = seconds if fits else math.inf
        return True

    def _takes(self, size: float, most: float) -> float:
        """The seconds up to which a proposal of this size is taken; so many where it fits in the memory allowed.

        Beyond that, less of it counts.
        """
        if not self._record.fits(self._size):
            return math.inf if size < self._size else -math.inf
        return most if self._record.fits(size) else -math.inf

    def _draw(self) -> Dict[int, Hashable]:
        """A proposal, which changes something."""
        found: Dict[int, Hashable] = {}
        while not found:
            operator = self._random.choice(self._free)
            kind = self._random.random()
            neighbours = self._problem.neighbours(operator)
            if kind < _SINGLE:
                found = self._set([operator], self._random.choice(self._choices[operator]))
            elif kind < _SINGLE + _COPY and neighbours:
                found = self._set([operator], self._now[self._random.choice(neighbours)])
            else:
                found = self._set(self._run_from(operator), self._random.choice(self._choices[operator]))
        return found

    def _set(self, operators: Sequence[int], choice: Hashable) -> Dict[int, Hashable]:
        return {one: choice for one in operators if self._now[one] != choice and choice in self._allowed[one]}

    def _run_from(self, operator: int) -> List[int]:
        """Some operators that hang together: few more often than many."""
        length = int(2 ** self._random.uniform(1, max(1.0, math.log2(min(_LONGEST_RUN, len(self._now)) + 1))))
        found = [operator]
        for one in found:  # it grows meanwhile
            found += [other for other in self._problem.neighbours(one) if other not in found][:length - len(found)]
        return found
