"""The search for a table's number of partitions P: arithmetic only, no communication, no clock.

Parallax (Kim et al., EuroSys 2019, section 4.3) models the time of an iteration as

    t(P) = theta0 + theta1 / P + theta2 * P

where theta1 / P is work that partitions share and theta2 * P what each costs, samples t by doubling P from a start
while that makes iterations faster, then by halving it, fits theta by least squares and takes
P* = sqrt(theta1 / theta2).  Parallax relaunches the job for each sample and uses one P for all tables.  Here every
sample is some steps of a job that goes on training (:mod:`mxhybrid.servers.repartition`), tables are searched one
after the other, and what all that may cost has a bound, see :class:`Budget`.
"""
import math
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from ..base.least_squares import nonnegative_least_squares

#: Share of the time of the first HORIZON_STEPS steps that a search may cost.
BUDGET_SHARE = 0.05
HORIZON_STEPS = 500
#: Steps that one sample takes: first some that are not counted, since buffers and caches fill, then some that are.
WARM_STEPS = 2
MEASURED_STEPS = 6
#: Relative gain below which a count is not faster, but noise.
MIN_GAIN = 0.02
#: In the model twice or half the partitions take at most twice the time; with some room for noise.
WORST_RATIO = 2.5
#: How much longer than estimated the first move may take.
MOVE_MARGIN = 1.5


@dataclass(frozen=True)
class Fit:
    """theta of the model, in seconds: constant, shared by the partitions, cost of each."""

    constant: float
    shared: float
    each: float

    def seconds(self, count: float) -> float:
        """Modelled time of a step with `count` partitions."""
        return self.constant + self.shared / count + self.each * count

    @property
    def best(self) -> float:
        """P* = sqrt(theta1 / theta2): infinite if more is always faster, NaN if it makes no difference."""
        if self.each > 0:
            return math.sqrt(self.shared / self.each)
        return math.inf if self.shared > 0 else math.nan


def fit(samples: Dict[int, float]) -> Optional[Fit]:
    """Least squares of the model, neither theta1 nor theta2 below 0.

    `samples` are seconds of a step by partition count; fewer than three do not determine the model, and give None.
    """
    if len(samples) < 3:
        return None
    counts = sorted(samples)
    theta = nonnegative_least_squares([(1.0, 1 / count, count) for count in counts],
                                      [samples[count] for count in counts], unbounded=[0])
    return Fit(*theta.tolist())


def best_sample(samples: Dict[int, float], start: int) -> int:
    """The fastest count of the samples; `start` unless that is clearly faster."""
    best = min(samples, key=lambda count: (samples[count], count))
    return best if samples[best] <= (1 - MIN_GAIN) * samples[start] else start


def best_count(samples: Dict[int, float], start: int) -> int:
    """The best count: P* of the fit if it beats the best sample clearly, otherwise the best sample.

    P* is taken between the smallest and the largest sample only, where the fit knows something.
    """
    best = best_sample(samples, start)
    model = fit(samples)
    if model is None or math.isnan(model.best):
        return best
    count = int(round(min(max(model.best, min(samples)), max(samples))))
    if count in samples:
        return best
    return count if model.seconds(count) < (1 - MIN_GAIN) * min(samples[best], model.seconds(best)) else best


class Search:
    """Which counts to sample for one table, which has `start` partitions, and may have `lowest` to `highest`."""

    def __init__(self, start: int, lowest: int, highest: int):
        self.start = start
        self.lowest = min(lowest, start)
        self.highest = max(highest, start)
        self.samples: Dict[int, float] = {}

    def observe(self, count: int, seconds: float) -> None:
        """A step took `seconds` with `count` partitions."""
        self.samples[count] = seconds

    def _faster(self, count: int, before: int) -> bool:
        return self.samples[count] < (1 - MIN_GAIN) * self.samples[before]

    def wants(self) -> Optional[int]:
        """The count to sample next, None when there is enough.

        In the model t falls towards P* from both sides, so where doubling helped halving does not; but the fit
        needs three samples.
        """
        if self.start not in self.samples:
            return self.start
        counts = sorted(self.samples)
        top, bottom = counts[-1], counts[0]
        rises = top == self.start or self._faster(top, counts[-2])
        if rises and top < self.highest:
            return min(2 * top, self.highest)
        falls = bottom == self.start or self._faster(bottom, counts[1])
        doubling_helped = top > self.start and self._faster(counts[counts.index(self.start) + 1], self.start)
        if falls and bottom > self.lowest and not (doubling_helped and len(counts) >= 3):
            return max(bottom // 2, self.lowest)
        return None

    def neighbour(self, count: int) -> int:
        """The sampled count from which `count` is reached by doubling or halving."""
        return min(self.samples, key=lambda other: abs(math.log(other / count)))


class Budget:
    """Seconds that may be lost: BUDGET_SHARE of HORIZON_STEPS steps, of `seconds` each, as they were before the search.

    Lost are the seconds of moves and of talking about them, and what steps take longer than before; gains are not set
    off.
    """

    def __init__(self, seconds: float):
        self.step = seconds
        self.total = BUDGET_SHARE * HORIZON_STEPS * seconds
        self.lost = 0.0

    def allows(self, seconds: float) -> bool:
        """Whether `seconds` more may be lost."""
        return self.lost + seconds <= self.total

    def spend(self, seconds: float) -> None:
        """`seconds` were lost."""
        self.lost += max(0.0, seconds)


@dataclass
class Candidate:
    """A table to be searched, of `count` partitions now, from `lowest` to `highest`.

    ``cost(old, new, known)`` estimates the seconds of a move; `known` are the counts that the table had.  Once its
    search has ended, `target` is the count to keep, `reason` says why for people, and `finished` whether it knows
    enough.
    """

    name: str
    count: int
    lowest: int
    highest: int
    cost: Callable[[int, int, Sequence[int]], float]
    known: List[int] = field(default_factory=list)
    reason: str = ''
    finished: bool = False

    def __post_init__(self) -> None:
        self.target = self.count
        self.search = Search(self.count, self.lowest, self.highest)
        self.known = [self.count]


class Tuning:
    """The search of several tables, one after the other, within one budget.

    Call :meth:`next`; carry out the move that it returns, let ``WARM_STEPS + MEASURED_STEPS`` steps pass and tell
    :meth:`observe` about them; until :meth:`next` returns None.

    The most important of `candidates` comes first; a step takes `seconds` with the counts that they have, and `steps`
    were made so far.
    """

    def __init__(self, candidates: List[Candidate], seconds: float, steps: int = 0):
        self.candidates = candidates
        self.budget = Budget(seconds)
        self.seconds = seconds
        self.steps = steps
        self._at = 0
        self._margin = MOVE_MARGIN
        self._estimate = 0.0

    @property
    def current(self) -> Optional[Candidate]:
        """The table that is searched."""
        return self.candidates[self._at] if self._at < len(self.candidates) else None

    def next(self) -> Optional[Tuple[Candidate, int]]:
        """The next move: a table and its new count; None at the end."""
        while self.current is not None:
            table = self.current
            if not table.reason:
                table.search.observe(table.count, self.seconds)
                wanted = table.search.wants()
                if wanted is None:
                    table.reason, table.finished = 'all counts of interest were sampled', True
                elif self.steps + WARM_STEPS + MEASURED_STEPS > HORIZON_STEPS:
                    table.reason = 'its %d steps are over' % HORIZON_STEPS
                elif not self.budget.allows(self._risk(table, wanted)):
                    table.reason = ('trying %d partitions could cost %.3g s, %.3g s of %.3g s are left'
                                    % (wanted, self._risk(table, wanted),
                                       self.budget.total - self.budget.lost, self.budget.total))
                else:
                    return self._move(table, wanted)
                self._settle(table)
            elif table.count not in table.search.samples:
                # The fit's optimum was measured; where it does not keep its promise the best sample is better.
                table.search.observe(table.count, self.seconds)
                table.target = best_sample(table.search.samples, table.search.start)
            if table.target != table.count:
                return self._move(table, table.target)
            self._at += 1
        return None

    def _move(self, table: Candidate, count: int) -> Tuple[Candidate, int]:
        self._estimate = table.cost(table.count, count, table.known)
        table.count = count
        if count not in table.known:
            table.known.append(count)
        return table, count

    def _risk(self, table: Candidate, wanted: int) -> float:
        """Seconds that sampling `wanted` may lose at worst, the way back to the best count included."""
        search = table.search
        worst = WORST_RATIO * search.samples[search.neighbour(wanted)]
        back = min(search.samples, key=lambda count: search.samples[count])
        return (self._cost(table, table.count, wanted) + self._cost(table, wanted, back)
                + (WARM_STEPS + MEASURED_STEPS) * max(0.0, worst - self.budget.step))

    def _cost(self, table: Candidate, old: int, new: int) -> float:
        return 0.0 if old == new else self._margin * table.cost(old, new, table.known + [old])

    def _settle(self, table: Candidate) -> None:
        """Choose the count that the table keeps: the best one, if trying it is within the budget."""
        samples = table.search.samples
        sampled = best_sample(samples, table.search.start)
        best = best_count(samples, table.search.start)
        if best not in samples:
            cost = (self._cost(table, table.count, best) + self._cost(table, best, sampled)
                    + (WARM_STEPS + MEASURED_STEPS) * max(0.0, WORST_RATIO * samples[sampled] - self.budget.step))
            if not self.budget.allows(cost):
                table.reason += '; trying %d, the optimum of the fit, could cost %.3g s' % (best, cost)
                best = sampled
        table.target = best

    def observe(self, move: float, warm: float, seconds: float) -> None:
        """What happened since :meth:`next`.

        The move took `move` seconds, the WARM_STEPS steps `warm` together, one of the MEASURED_STEPS steps `seconds`.
        What the script did between the first, validation say, is in there, so no more counts as lost than where each
        was WORST_RATIO times as slow.
        """
        step = self.budget.step
        self.budget.spend(move)
        self.budget.spend(min(warm, WARM_STEPS * WORST_RATIO * step) - WARM_STEPS * step)
        self.budget.spend(MEASURED_STEPS * (seconds - step))
        if self._estimate > 0:
            self._margin = max(self._margin, move / self._estimate)
        self.steps += WARM_STEPS + MEASURED_STEPS
        self.seconds = seconds
