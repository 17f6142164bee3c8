"""The search for a table's number of partitions P: arithmetic only, no communication, no clock.

Parallax (Kim et al., EuroSys 2019, section 4.3) models the time of an iteration as

    t(P) = theta0 + theta1 / P + theta2 * P

where theta1 / P is work that partitions share and theta2 * P the cost of each partition.  It samples t by doubling P
from a start while that makes iterations faster, then by halving it, fits theta by least squares and takes
P* = sqrt(theta1 / theta2).  Parallax relaunches the job for each sample and uses one P for all tables.  Here every
sample consists of steps of a job that goes on training (:mod:`mxhybrid.servers.repartition`), tables are searched one
after the other, and the cost of the search is bounded, see :class:`Budget`.
"""
import math
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from ..base.least_squares import nonnegative_least_squares

#: Share of the time of the first HORIZON_STEPS steps that a search may cost.
BUDGET_SHARE = 0.05
HORIZON_STEPS = 500
#: Steps of a sample: first steps that do not count, in which buffers and caches fill, then steps that are measured.
WARM_STEPS = 2
MEASURED_STEPS = 6
#: Relative gain below which a difference is taken for noise.
MIN_GAIN = 0.02
#: Largest slowdown by twice or half the partitions: 2 in the model, and some room for noise.
WORST_RATIO = 2.5
#: Factor by which the first move may take longer than estimated.
MOVE_MARGIN = 1.5


@dataclass(frozen=True)
class Fit:
    """The parameters theta of the model, in seconds: constant, shared by the partitions, cost of each partition."""

    constant: float
    shared: float
    each: float

    def seconds(self, count: float) -> float:
        """Return the modelled time of a step with `count` partitions."""
        return self.constant + self.shared / count + self.each * count

    @property
    def best(self) -> float:
        """The optimum P* = sqrt(theta1 / theta2): infinity if more is always faster, NaN if P makes no difference."""
        if self.each > 0:
            return math.sqrt(self.shared / self.each)
        return math.inf if self.shared > 0 else math.nan


def fit(samples: Dict[int, float]) -> Optional[Fit]:
    """Fit the model by least squares, with neither theta1 nor theta2 below 0.

    `samples` has the seconds of a step by partition count.  Fewer than three samples do not determine the model: None.
    """
    if len(samples) < 3:
        return None
    counts = sorted(samples)
    theta = nonnegative_least_squares([(1.0, 1 / count, count) for count in counts],
                                      [samples[count] for count in counts], unbounded=[0])
    return Fit(*theta.tolist())


def best_sample(samples: Dict[int, float], start: int) -> int:
    """Return the fastest count of the samples, or `start` if that count is not clearly faster."""
    best = min(samples, key=lambda count: (samples[count], count))
    return best if samples[best] <= (1 - MIN_GAIN) * samples[start] else start


def best_count(samples: Dict[int, float], start: int) -> int:
    """Return the best count: P* of the fit if it is clearly faster than the best sample, otherwise the best sample.

    P* is limited to the range of the samples, in which the fit is valid.
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
    """Chooses the counts to sample for a table that has `start` partitions, and may have `lowest` to `highest`."""

    def __init__(self, start: int, lowest: int, highest: int):
        self.start = start
        self.lowest = min(lowest, start)
        self.highest = max(highest, start)
        self.samples: Dict[int, float] = {}

    def observe(self, count: int, seconds: float) -> None:
        """Note that a step took `seconds` with `count` partitions."""
        self.samples[count] = seconds

    def _faster(self, count: int, before: int) -> bool:
        return self.samples[count] < (1 - MIN_GAIN) * self.samples[before]

    def next_count(self) -> Optional[int]:
        """Return the count to sample next, None if there are enough samples.

        In the model t decreases towards P* from both sides: if doubling helped, halving does not.  But the fit needs
        three samples.
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
        """Return the sampled count from which `count` is reached by doubling or halving."""
        return min(self.samples, key=lambda other: abs(math.log(other / count)))


class Budget:
    """Seconds that a search may lose: BUDGET_SHARE of HORIZON_STEPS steps, of `seconds` each before the search.

    Lost are the seconds of moves and decisions, and the seconds by which steps are slower than before.  Faster steps do
    not reduce the loss.
    """

    def __init__(self, seconds: float):
        self.step = seconds
        self.total = BUDGET_SHARE * HORIZON_STEPS * seconds
        self.lost = 0.0

    def allows(self, seconds: float) -> bool:
        """Return whether `seconds` more may be lost."""
        return self.lost + seconds <= self.total

    def spend(self, seconds: float) -> None:
        """Note that `seconds` were lost."""
        self.lost += max(0.0, seconds)


@dataclass
class Candidate:
    """A table to be searched, with `count` partitions now, and a range from `lowest` to `highest`.

    ``cost(old, new, known)`` estimates the seconds of a move; `known` are the counts that the table has had.  Once the
    search has ended, `target` is the count to keep, `reason` is the reason in words, and `finished` says whether the
    search was complete.
    """

    name: str
    count: int
    lowest: int
    highest: int
    cost: Callable[[int, int, Sequence[int]], float]
    reason: str = ''
    finished: bool = False

    def __post_init__(self) -> None:
        self.target = self.count
        self.search = Search(self.count, self.lowest, self.highest)
        self.known: List[int] = [self.count]


class Tuning:
    """The search of several tables, one after the other, within one budget.

    Call :meth:`next`, make the move that it returns, let ``WARM_STEPS + MEASURED_STEPS`` steps pass and report them to
    :meth:`observe`, until :meth:`next` returns None.

    The most important of `candidates` comes first.  A step takes `seconds` with their present counts, and `steps` steps
    were made so far.
    """

    def __init__(self, candidates: List[Candidate], seconds: float, steps: int = 0):
        self.candidates = candidates
        self.budget = Budget(seconds)
        self.seconds = seconds
        self.steps = steps
        self._current_index = 0
        self._margin = MOVE_MARGIN
        self._estimate = 0.0

    @property
    def current(self) -> Optional[Candidate]:
        """The table that is being searched."""
        return self.candidates[self._current_index] if self._current_index < len(self.candidates) else None

    def next(self) -> Optional[Tuple[Candidate, int]]:
        """Return the next move, a table and its new count; None at the end."""
        while self.current is not None:
            table = self.current
            if not table.reason:
                table.search.observe(table.count, self.seconds)
                count = table.search.next_count()
                if count is None:
                    table.reason, table.finished = 'all counts of interest were sampled', True
                elif self.steps + WARM_STEPS + MEASURED_STEPS > HORIZON_STEPS:
                    table.reason = 'its %d steps are over' % HORIZON_STEPS
                elif not self.budget.allows(self._risk(table, count)):
                    table.reason = ('trying %d partitions could cost %.3g s, %.3g s of %.3g s are left'
                                    % (count, self._risk(table, count),
                                       self.budget.total - self.budget.lost, self.budget.total))
                else:
                    return self._move(table, count)
                self._settle(table)
            elif table.count not in table.search.samples:
                # The optimum of the fit was measured.  If it is slower than predicted, the best sample is better.
                table.search.observe(table.count, self.seconds)
                table.target = best_sample(table.search.samples, table.search.start)
            if table.target != table.count:
                return self._move(table, table.target)
            self._current_index += 1
        return None

    def _move(self, table: Candidate, count: int) -> Tuple[Candidate, int]:
        self._estimate = table.cost(table.count, count, table.known)
        table.count = count
        if count not in table.known:
            table.known.append(count)
        return table, count

    def _risk(self, table: Candidate, count: int) -> float:
        """Return the seconds that a sample of `count` may lose at worst, with the move back to the best count."""
        search = table.search
        worst = WORST_RATIO * search.samples[search.neighbour(count)]
        best = min(search.samples, key=lambda sampled: search.samples[sampled])
        return (self._cost(table, table.count, count) + self._cost(table, count, best)
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
        """Report the move and the steps since :meth:`next`.

        The move took `move` seconds, the WARM_STEPS steps `warm` seconds together, each of the MEASURED_STEPS steps
        `seconds`.  The time of the first steps may include other work of the script, such as validation, so at most
        WORST_RATIO times the former time of a step counts as lost for each of them.
        """
        step = self.budget.step
        self.budget.spend(move)
        self.budget.spend(min(warm, WARM_STEPS * WORST_RATIO * step) - WARM_STEPS * step)
        self.budget.spend(MEASURED_STEPS * (seconds - step))
        if self._estimate > 0:
            self._margin = max(self._margin, move / self._estimate)
        self.steps += WARM_STEPS + MEASURED_STEPS
        self.seconds = seconds
