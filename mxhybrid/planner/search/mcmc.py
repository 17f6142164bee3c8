"""Markov chain Monte Carlo: chains of proposals that look for the best choice for each operator.

The algorithm is that of FlexFlow (Jia, Zaharia, Aiken: Beyond Data and Model Parallelism for Deep Neural Networks,
MLSys 2019): a proposal is accepted with the probability min(1, exp(beta * (old - new))).  A chain runs in waves, each
from its best plan so far, in which beta grows.  The first waves begin with a large beta, and accept almost nothing that
is slower; later ones begin with a smaller beta each, and leave a local optimum.  Beta is relative to how much slower
proposals are.

The random number is drawn first: so most proposals are known to be rejected long before their time is known.

Repeated blocks share choices: some proposals change the same operators of all blocks at once, so that a network of many
layers is searched in as many proposals as one of a few layers.

Chains from several starts share a budget; those that begin far behind the fastest get less of it.
"""
import dataclasses
import math
import random
import time
from typing import Callable, Dict, Hashable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ...base.errors import InputError
from .gc_control import paused_gc
from .pareto_front import Assignment, ParetoFront, Point
from .plan_evaluator import PlanEvaluator

#: 1 / beta at the start of each wave, in units of the mean slowdown of slower proposals; and its share of that at the
#: end of the wave.
_TEMPERATURES, _COOLING = (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0), 0.01
#: The slowdown before any slower proposal was seen, as a share of the seconds of the start.
_FIRST_SLOWDOWN = 0.01
#: The proposals of a wave, for each operator, and at least.
_WAVE, _MIN_WAVE = 4, 50
#: The shares of proposals that change a single operator, and that copy the choice of a neighbour; the others change
#: several neighbours.
_SINGLE, _COPY = 0.3, 0.1
#: Where blocks repeat: the share of proposals that change the operators of all blocks together; and the share of these
#: that make all blocks as one of them is.
_IN_ALL_BLOCKS, _AS_ONE_BLOCK = 0.6, 0.15
#: A start is far behind if its step takes this many times as long as at the fastest start; its chain gets this share of
#: the budget of other chains.
_FAR, _FAR_SHARE = 1.5, 0.25
#: The largest number of operators that a proposal changes: changes are what takes time to simulate.
_MAX_RUN = 8
#: The same for a proposal that changes the operators of all blocks: it changes at least one in each block.
_MAX_IN_ALL_BLOCKS = 64


@dataclasses.dataclass(frozen=True)
class SearchLimits:
    """The limits of a search, and of the plans that it may find."""

    seconds: Optional[float] = None
    proposals: Optional[int] = None
    #: A chain ends after this number of proposals without a better plan.
    patience: Optional[int] = None
    #: Bytes that no rank of a plan may exceed.
    memory: Optional[float] = None
    #: Whether it is an error if no plan keeps to the memory; otherwise the plan that needs least is the result.
    is_memory_strict: bool = True


class Progress(NamedTuple):
    """The progress of a search: the start of the current chain, the proposals of all chains so far, the elapsed
    seconds, and the seconds of the best plan.
    """

    start: str
    proposals: int
    elapsed: float
    best: float


class Chain(NamedTuple):
    """The outcome of a chain."""

    #: The name of the plan that it began at.
    start: str
    #: The seconds of that plan, and of the best plan of the chain; infinite where none fits in memory.
    seconds: float
    best: float
    proposals: int
    #: Why it ended: 'seconds', 'proposals', 'patience'; 'stopped' by the watcher; 'no choice' where there is none; or
    #: 'same' where another chain has the same start.
    ended: str


class SearchResult(NamedTuple):
    """The result of a search."""

    #: The fastest plan within the memory allowed.
    assignment: Assignment
    #: The seconds of a step with it, and the bytes of the fullest rank.
    seconds: float
    bytes: float
    #: The plans that no other plan beats in time and memory, also those beyond the memory allowed.
    front: List[Point]
    chains: List[Chain]
    #: The seconds of the search.
    elapsed: float


Watcher = Callable[[Progress], Optional[bool]]


def run_chains(problem: PlanEvaluator, starts: Mapping[str, Assignment], limits: SearchLimits, seed: int = 0,
               watcher: Optional[Watcher] = None) -> SearchResult:
    """Search by a chain from each of several plans.

    - `starts`: plans by name.  All are evaluated, whatever the limits, so the result is never worse than one of them.
      Chains run in order of time, the fastest start first; what a chain leaves of its budget goes to the next ones.
      Equal starts have one chain, that of the first.
    - `limits`: at least one of `seconds`, `proposals` and `patience`.
    - `seed`: the same seed gives the same result, unless time ends the search.
    - `watcher`: called with a :class:`Progress` after each proposal; ends the search if it returns something true.

    Raises InputError if the limits never end the search, or no plan was found within the memory allowed.
    """
    if limits.seconds is None and limits.proposals is None and limits.patience is None:
        raise InputError('limits: a search without a limit never ends: give seconds, proposals or patience')
    if not starts:
        raise InputError('starts: the list is empty: give at least one plan')
    record = SearchRecord(problem, limits)
    with paused_gc():
        runners: Dict[Assignment, _ChainRunner] = {}
        repeated = []
        for number, (name, assignment) in enumerate(starts.items()):
            if assignment in runners:
                seconds = runners[assignment].seconds
                repeated.append(Chain(name, seconds, seconds, 0, 'same'))
                continue
            source = random.Random('%d/%d' % (seed, number))
            runners[assignment] = _ChainRunner(record, name, assignment, source, watcher)
        in_order = sorted(runners.values(), key=lambda runner: runner.seconds)
        fastest = in_order[0].seconds if math.isinf(record.best) else record.best
        shares = [1.0 if runner.seconds <= _FAR * fastest else _FAR_SHARE for runner in in_order]
        chains = [runner.run(*record.share(shares[index] / sum(shares[index:])))
                  for index, runner in enumerate(in_order)]
    return record.result(sorted(chains + repeated, key=lambda chain: chain.seconds))


class SearchRecord:
    """A record of all plans that were seen, and of the budget."""

    def __init__(self, problem: PlanEvaluator, limits: SearchLimits):
        self.problem = problem
        self.limits = limits
        self.proposals = 0
        self.is_stopped = False
        self.best = math.inf
        self._best_point: Optional[Point] = None
        self._front = ParetoFront()
        self._began = time.monotonic()

    @property
    def elapsed(self) -> float:
        """The seconds since the search began."""
        return time.monotonic() - self._began

    def limit(self, size_bytes: float) -> float:
        """Return the seconds beyond which a plan of this size is of no interest."""
        is_first = self._best_point is None and self.fits(size_bytes)
        return math.inf if is_first else self._front.least_seconds(size_bytes)

    def share(self, share: float) -> Tuple[float, float]:
        """Return a share of the remaining budget: when it ends, in seconds of the search, and the proposals."""
        seconds, proposals = self.limits.seconds, self.limits.proposals
        return (math.inf if seconds is None else self.elapsed + share * max(0.0, seconds - self.elapsed),
                math.inf if proposals is None else int(share * (proposals - self.proposals) + 1e-9))

    def fits(self, size_bytes: float) -> bool:
        """Return whether a plan keeps to the memory allowed."""
        return self.limits.memory is None or size_bytes <= self.limits.memory

    def see(self, seconds: float, size_bytes: float, current: Sequence[Hashable], changes: Mapping[int, Hashable]
            ) -> None:
        """Record a plan: the current choices with changes."""
        def assignment() -> Assignment:
            return tuple(changes.get(operator, choice) for operator, choice in enumerate(current))

        self._front.add(seconds, size_bytes, assignment)
        if self.fits(size_bytes) and (self._best_point is None or seconds < self.best):
            self.best = seconds
            self._best_point = Point(size_bytes, seconds, assignment())

    def result(self, chains: List[Chain]) -> SearchResult:
        """Return the result of the search; InputError where no plan fits in memory."""
        front, best = self._front.points(), self._best_point
        if best is None and not self.limits.is_memory_strict:
            best = front[0]
        if best is None:
            raise InputError('memory: in every plan that was tried, a rank needs more than the limit of %.0f bytes, or '
                             'than memory_bytes of its host in the cluster file; the smallest plan needs %.0f bytes: '
                             'raise the limit, correct the file, or take more ranks'
                             % (self.limits.memory or 0, front[0].bytes))
        return SearchResult(best.assignment, best.seconds, best.bytes, front, chains, self.elapsed)


class _ChainRunner:
    """A chain of proposals from one start."""

    def __init__(self, record: SearchRecord, name: str, start: Assignment, source: random.Random,
                 watcher: Optional[Watcher]):
        self._record, self._problem = record, record.problem
        self._name, self._random, self._watcher = name, source, watcher
        operators = range(self._problem.operators)
        if len(start) != len(operators):
            raise InputError('start %s: it has %d choices for %d operators: give a choice for each operator'
                             % (name, len(start), len(operators)))
        self._candidates = [list(self._problem.candidates(operator)) for operator in operators]
        self._allowed = [frozenset(candidates) for candidates in self._candidates]
        #: The operators that have a choice.
        self._free = [operator for operator in operators if len(self._candidates[operator]) > 1]
        #: The groups of operators that have a choice: a wave has some proposals for each.
        self._groups = len({tuple(self._problem.alike(operator)) for operator in self._free})
        self._current: List[Hashable] = list(start)
        self.seconds = self._seconds = self._problem.begin(start)
        self._bytes = self._problem.memory()
        record.see(self.seconds, self._bytes, self._current, {})
        self._best = self.seconds if record.fits(self._bytes) else math.inf
        self._best_assignment = start
        #: The number of slower proposals, and the sum of the logarithms of their slowdowns.
        self._slower, self._log_slowdowns = 1, math.log(_FIRST_SLOWDOWN * self.seconds)

    def run(self, end_s: float, most_proposals: float) -> Chain:
        """Run until some seconds of the search, or for some proposals."""
        wave = max(_MIN_WAVE, _WAVE * self._groups)
        proposals = last_gain = 0
        ended = self._end(0, 0, end_s, most_proposals)
        while not ended:
            if proposals % wave == 0:
                self._return_to_best()
            temperature = (_TEMPERATURES[proposals // wave % len(_TEMPERATURES)]
                           * _COOLING ** (proposals % wave / wave))
            proposals += 1
            self._record.proposals += 1
            best = self._best
            self._try(self._draw(), temperature)
            if self._best < best:
                last_gain = proposals
            if self._watcher is not None:
                self._record.is_stopped |= bool(self._watcher(Progress(
                    self._name, self._record.proposals, self._record.elapsed, self._record.best)))
            ended = self._end(proposals, proposals - last_gain, end_s, most_proposals)
        return Chain(self._name, self.seconds, self._best, proposals, ended)

    def _end(self, proposals: int, without_gain: int, end_s: float, most_proposals: float) -> str:
        """Return why the chain ends now; an empty string if it goes on."""
        patience = self._record.limits.patience
        reasons = (('no choice', not self._free), ('stopped', self._record.is_stopped),
                   ('proposals', proposals >= most_proposals),
                   ('patience', patience is not None and without_gain >= patience),
                   ('seconds', self._record.elapsed >= end_s))
        return next((reason for reason, holds in reasons if holds), '')

    def _return_to_best(self) -> None:
        self._current = list(self._best_assignment)
        self._seconds = self._problem.begin(self._best_assignment)
        self._bytes = self._problem.memory()

    def _try(self, changes: Dict[int, Hashable], temperature: float) -> None:
        """Propose changes, and accept or reject them."""
        # Accepting with the probability exp(-beta * slowdown) is to accept a slowdown below a random number of the
        # exponential distribution, divided by beta.
        exponential = -math.log(1 - self._random.random())
        mean_slowdown = math.exp(self._log_slowdowns / self._slower)
        most_seconds = self._seconds + exponential * temperature * mean_slowdown
        seconds = self._problem.propose(changes, lambda size_bytes: max(
            self._record.limit(size_bytes), self._acceptable_seconds(size_bytes, most_seconds)))
        size_bytes = self._problem.memory()
        self._record.see(seconds, size_bytes, self._current, changes)
        slowdown = seconds - self._seconds
        if 0 < slowdown < math.inf and self._record.fits(self._bytes) and self._record.fits(size_bytes):
            self._slower += 1
            self._log_slowdowns += math.log(slowdown)
        if not seconds <= self._acceptable_seconds(size_bytes, most_seconds):
            self._problem.reject()
            return
        self._problem.accept()
        self._seconds, self._bytes = seconds, size_bytes
        for operator, choice in changes.items():
            self._current[operator] = choice
        fits = self._record.fits(size_bytes)
        if seconds < self._best if fits else math.isinf(self._best):
            self._best_assignment = tuple(self._current)
            self._best = seconds if fits else math.inf

    def _acceptable_seconds(self, size_bytes: float, most_seconds: float) -> float:
        """Return the seconds up to which a proposal of this size is accepted.

        They are `most_seconds` where both plans keep to the memory allowed.  While the current plan does not, any plan
        that needs less memory is accepted.
        """
        if not self._record.fits(self._bytes):
            return math.inf if size_bytes < self._bytes else -math.inf
        return most_seconds if self._record.fits(size_bytes) else -math.inf

    def _draw(self) -> Dict[int, Hashable]:
        """Draw a proposal that changes something."""
        changes: Dict[int, Hashable] = {}
        while not changes:
            operator = self._random.choice(self._free)
            if self._groups < len(self._free) and self._random.random() < _IN_ALL_BLOCKS:
                changes = self._draw_in_all_blocks(operator)
                continue
            kind = self._random.random()
            neighbours = self._problem.neighbours(operator)
            if kind < _SINGLE:
                changes = self._changes([operator], self._random.choice(self._candidates[operator]))
            elif kind < _SINGLE + _COPY and neighbours:
                changes = self._changes([operator], self._current[self._random.choice(neighbours)])
            else:
                changes = self._changes(self._run_from(operator), self._random.choice(self._candidates[operator]))
        return changes

    def _draw_in_all_blocks(self, operator: int) -> Dict[int, Hashable]:
        """Draw a proposal that changes an operator, and some connected to it, in all blocks in which they repeat."""
        kind = self._random.random()
        most = max(1, _MAX_IN_ALL_BLOCKS // len(self._problem.alike(operator)))
        run = [operator] if kind < _SINGLE else self._run_from(operator)[:most]
        if self._random.random() < _AS_ONE_BLOCK:
            return {other: choice for member in run for other, choice in self._changes(
                self._problem.alike(member), self._current[member]).items()}
        neighbours = self._problem.neighbours(operator)
        is_copy = _SINGLE <= kind < _SINGLE + _COPY and neighbours
        choice = (self._current[self._random.choice(neighbours)] if is_copy
                  else self._random.choice(self._candidates[operator]))
        return self._changes([other for member in run for other in self._problem.alike(member)], choice)

    def _changes(self, operators: Sequence[int], choice: Hashable) -> Dict[int, Hashable]:
        return {operator: choice for operator in operators
                if self._current[operator] != choice and choice in self._allowed[operator]}

    def _run_from(self, operator: int) -> List[int]:
        """Draw some connected operators, few of them more often than many."""
        length = int(2 ** self._random.uniform(1, max(1.0, math.log2(min(_MAX_RUN, len(self._current)) + 1))))
        run = [operator]
        for member in run:  # which grows in this loop
            run += [neighbour for neighbour in self._problem.neighbours(member) if neighbour not in run][
                :length - len(run)]
        return run
