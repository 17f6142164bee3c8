"""Searches: the optimum of small nets, limits, memory, the same again."""
import itertools
import math
import time

import pytest
from hypothesis import given, strategies as st

from mxhybrid.base.errors import InputError
from mxhybrid.planner.search.mcmc import Progress, SearchLimits, run_chains
from mxhybrid.planner.search.pareto import ParetoFront
from tests.helpers.small_plans import WAYS, SmallPlan
from tests.oracles.exhaustive_search import gray_code, try_all

SAMPLES = ('samples', 4)


class Table:
    """A problem of which all plans are listed: seconds and bytes of each."""

    def __init__(self, values):
        self.operators = len(next(iter(values)))
        self._values = values
        self._now = self._then = None
        self.proposed = []

    def candidates(self, operator):
        return sorted({assignment[operator] for assignment in self._values})

    def neighbours(self, operator):
        return [one for one in (operator - 1, operator + 1) if 0 <= one < self.operators]

    def begin(self, assignment):
        self._now = self._then = tuple(assignment)
        return self._values[self._now][0]

    def propose(self, changes, limit=None):
        assert all(self._now[one] != choice for one, choice in changes.items())
        assert self._then == self._now
        self._then = tuple(changes.get(one, choice) for one, choice in enumerate(self._now))
        self.proposed.append(self._then)
        seconds, size = self._values[self._then]
        if limit is None or seconds <= limit(size):
            return seconds
        # No more is known than that.
        return min(seconds, limit(size) + 1e-9)

    def accept(self):
        self._now = self._then

    def reject(self):
        self._then = self._now

    def memory(self):
        return self._values[self._then][1]


@st.composite
def tables(draw):
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    plans = itertools.product(*(range(count) for count in counts))
    return Table({plan: (draw(st.sampled_from([1.0, 2.0, 3.5, 7.0])), draw(st.integers(1, 4))) for plan in plans})


@given(tables())
def test_all_combinations_are_tried_once(table):
    found = try_all(table)
    assert sorted(table.proposed + [(0,) * table.operators]) == sorted(table._values)
    assert (found.seconds, found.bytes) == table._values[found.assignment]
    assert found.seconds == min(seconds for seconds, _ in table._values.values())


@given(tables(), st.integers(1, 4))
def test_memory_is_a_hard_limit(table, memory):
    fitting = [seconds for seconds, size in table._values.values() if size <= memory]
    limits = SearchLimits(proposals=50, memory=memory)
    start = {'first': (0,) * table.operators}
    if not fitting:
        for search in (lambda: try_all(table, limits), lambda: run_chains(table, start, limits)):
            with pytest.raises(InputError, match='at most %d bytes' % memory):
                search()
        return
    found = try_all(table, limits)
    assert found.seconds == min(fitting) and found.bytes <= memory
    try:
        walked = run_chains(table, start, limits)
    except InputError:  # it may not find one
        assert table._values[start['first']][1] > memory
    else:
        assert walked.bytes <= memory and (walked.seconds, walked.bytes) == table._values[walked.assignment]


@given(tables())
def test_the_front_is_of_all_plans_seen(table):
    front = try_all(table).front
    worse = {plan for plan, (seconds, size) in table._values.items()
             if any((a <= seconds and b <= size) and (a, b) != (seconds, size) for a, b in table._values.values())}
    best = {value for plan, value in table._values.items() if plan not in worse}
    assert sorted((point.seconds, point.bytes) for point in front) == sorted(best)
    assert all(table._values[point.assignment] == (point.seconds, point.bytes) for point in front)
    assert [point.bytes for point in front] == sorted(point.bytes for point in front)


@given(st.lists(st.integers(1, 4), max_size=4))
def test_numbers_are_led_through_a_digit_at_a_time(counts):
    now = [0] * len(counts)
    seen = {tuple(now)}
    for place, digit in gray_code(counts):
        assert abs(now[place] - digit) == 1
        now[place] = digit
        seen.add(tuple(now))
    assert len(seen) == math.prod(counts)


@given(tables(), st.integers(1, 4) | st.none())
def test_nothing_is_missed_of_what_nobody_asks_for(table, memory):
    start = {'first': (0,) * table.operators, 'last': max(table._values)}
    try:
        found = run_chains(table, start, SearchLimits(proposals=60, memory=memory))
    except InputError:
        return
    seen = {table._values[plan] for plan in [*table.proposed, *start.values()]}
    assert found.seconds == min(seconds for seconds, size in seen if memory is None or size <= memory)
    assert {(point.seconds, point.bytes) for point in found.front} == {
        one for one in seen if not any(a <= one[0] and b <= one[1] and (a, b) != one for a, b in seen)}


def test_a_front_asks_only_for_what_it_keeps():
    front = ParetoFront()
    front.add(2.0, 5, lambda: ('a',))
    front.add(2.0, 5, lambda: pytest.fail('as good as another'))
    front.add(3.0, 6, lambda: pytest.fail('worse'))
    front.add(3.0, 4, lambda: ('b',))
    front.add(2.0, 4, lambda: ('c',))
    assert [point.assignment for point in front.points()] == [('c',)] and len(front) == 1


@pytest.mark.parametrize('seed', range(8))
def test_walks_find_the_optimum(seed):
    best = try_all(SmallPlan(seed, 4))
    starts = {'samples': (SAMPLES,) * 4, 'channels': (('channels', 4),) * 4}
    found = run_chains(SmallPlan(seed, 4), starts, SearchLimits(proposals=1500), seed)
    assert found.seconds == best.seconds
    assert best.seconds < min(walk.seconds for walk in found.chains)


def test_walks_find_the_optimum_within_memory():
    free = try_all(SmallPlan(3, 4))
    tight = SearchLimits(proposals=1500, memory=0.5 * (free.front[0].bytes + free.bytes))
    best = try_all(SmallPlan(3, 4), tight)
    found = run_chains(SmallPlan(3, 4), {'whole': (('whole', 1),) * 4}, tight)
    assert found.seconds == best.seconds > free.seconds
    assert found.bytes <= tight.memory < free.bytes


def test_a_seed_gives_the_same_whether_or_not_time_is_looked_at():
    starts = {'samples': (SAMPLES,) * 5, 'whole': (('whole', 1),) * 5}
    first, again, timed, other = (
        run_chains(SmallPlan(1, 5), starts, limits, seed)._replace(elapsed=0.0)
        for limits, seed in ((SearchLimits(proposals=200), 7), (SearchLimits(proposals=200), 7),
                             (SearchLimits(proposals=200, seconds=3600), 7), (SearchLimits(proposals=200), 8)))
    assert first == again == timed
    assert first.chains != other.chains


def test_it_ends_by_proposals_and_shares_them():
    starts = {'samples': (SAMPLES,) * 5, 'whole': (('whole', 1),) * 5}
    seen = []
    found = run_chains(SmallPlan(1, 5), starts, SearchLimits(proposals=101), watcher=seen.append)
    # The other one begins far behind, and has a quarter as many.
    assert [(walk.start, walk.proposals) for walk in found.chains] == [('whole', 80), ('samples', 21)]
    assert {walk.ended for walk in found.chains} == {'proposals'}
    assert [one.proposals for one in seen] == list(range(1, 102)) and isinstance(seen[0], Progress)
    assert seen[-1].best == found.seconds == min(walk.best for walk in found.chains)
    assert [one.best for one in seen] == sorted((one.best for one in seen), reverse=True)


def test_who_begins_far_behind_has_a_quarter_and_equal_starts_walk_once():
    table = Table({plan: (sum(plan) + 1.0, 1) for plan in itertools.product(range(2), repeat=8)})
    starts = {'far': (1,) * 8, 'here': (1,) + (0,) * 7, 'again': (1,) + (0,) * 7, 'there': (0,) * 7 + (1,)}
    found = run_chains(table, starts, SearchLimits(proposals=450))
    assert [(walk.start, walk.seconds, walk.proposals, walk.ended) for walk in found.chains] == [
        ('here', 2.0, 200, 'proposals'), ('there', 2.0, 200, 'proposals'), ('again', 2.0, 0, 'same'),
        ('far', 9.0, 50, 'proposals')]
    assert found.seconds == 1.0 and len(table.proposed) == 450


def test_it_ends_when_nothing_is_gained_and_leaves_the_rest_to_others():
    starts = {'samples': (SAMPLES,) * 3, 'whole': (('whole', 1),) * 3}
    found = run_chains(SmallPlan(1, 3), starts, SearchLimits(proposals=100_000, patience=60))
    assert {walk.ended for walk in found.chains} == {'patience'}
    assert all(60 <= walk.proposals < 3000 for walk in found.chains)


def test_who_watches_may_end_it():
    starts = {'samples': (SAMPLES,) * 5, 'whole': (('whole', 1),) * 5}
    found = run_chains(SmallPlan(1, 5), starts, SearchLimits(seconds=3600),
                          watcher=lambda now: now.proposals == 70)
    assert [(walk.proposals, walk.ended) for walk in found.chains] == [(70, 'stopped'), (0, 'stopped')]
    assert found.seconds == min(walk.best for walk in found.chains)


@pytest.mark.alone
def test_it_ends_by_time():
    starts = {'samples': (SAMPLES,) * 5, 'whole': (('whole', 1),) * 5}
    began = time.monotonic()
    found = run_chains(SmallPlan(1, 5), starts, SearchLimits(seconds=0.6))
    assert 0.6 <= time.monotonic() - began < 1.5
    assert [walk.ended for walk in found.chains] == ['seconds'] * 2
    assert all(walk.proposals > 20 for walk in found.chains)


def test_starts_count_even_without_a_proposal():
    starts = {'whole': (('whole', 1),) * 4, 'samples': (SAMPLES,) * 4}
    found = run_chains(SmallPlan(2, 4), starts, SearchLimits(proposals=0))
    assert found.seconds == min(walk.seconds for walk in found.chains)
    assert found.assignment in starts.values()
    assert [walk.seconds for walk in found.chains] == sorted(walk.seconds for walk in found.chains)


def test_a_net_without_choices_needs_no_search():
    found = run_chains(SmallPlan(2, 3, WAYS[:1]), {'samples': (SAMPLES,) * 3}, SearchLimits(seconds=3600))
    assert found.chains[0].ended == 'no choice' and found.assignment == (SAMPLES,) * 3


def test_what_never_ends_is_refused():
    plan = SmallPlan(0, 3)
    with pytest.raises(InputError, match='never ends'):
        run_chains(plan, {'samples': (SAMPLES,) * 3}, SearchLimits(memory=1e9))
    with pytest.raises(InputError, match='at least one plan'):
        run_chains(plan, {}, SearchLimits(proposals=1))
    with pytest.raises(InputError, match='2 choices for 3 operators'):
        run_chains(plan, {'samples': (SAMPLES,) * 2}, SearchLimits(proposals=1))
    with pytest.raises(InputError, match='too many to try all'):
        try_all(SmallPlan(0, 12))
