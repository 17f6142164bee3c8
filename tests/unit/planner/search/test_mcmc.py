"""Searches: the optimum of small networks, limits, memory, the same result of the same seed, and paused collections."""
import gc
import itertools
import types

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mxhybrid.base.errors import InputError
from mxhybrid.planner.search import mcmc
from mxhybrid.planner.search.gc_control import paused_gc
from mxhybrid.planner.search.mcmc import Progress, SearchLimits, run_chains
from mxhybrid.planner.search.pareto_front import ParetoFront
from tests.oracles.exhaustive_search import try_all

SAMPLES = ('samples', 4)


class Plans:
    """A problem whose operators are in a row: `choices` has those of each, `value_of` returns seconds and bytes."""

    def __init__(self, choices, value_of):
        self.operators = len(choices)
        self._choices, self._value_of = choices, value_of
        self._current = self._proposed = ()

    def candidates(self, operator):
        return self._choices[operator]

    def neighbours(self, operator):
        return [neighbour for neighbour in (operator - 1, operator + 1) if 0 <= neighbour < self.operators]

    def alike(self, operator):
        return [operator]

    def begin(self, assignment):
        self._current = self._proposed = tuple(assignment)
        return self._value_of(self._current)[0]

    def propose(self, changes, limit=None):
        assert all(self._current[operator] != choice for operator, choice in changes.items())
        assert self._proposed == self._current
        self._proposed = tuple(changes.get(operator, choice) for operator, choice in enumerate(self._current))
        return self._value_of(self._proposed)[0]

    def accept(self):
        self._current = self._proposed

    def reject(self):
        self._proposed = self._current

    def memory(self):
        return self._value_of(self._proposed)[1]


class ListedPlans(Plans):
    """Plans with a dict of the seconds and the bytes of each; proposals are noted."""

    def __init__(self, values):
        super().__init__([sorted(set(choices)) for choices in zip(*values)], values.__getitem__)
        self.values, self.proposals = values, []

    def propose(self, changes, limit=None):
        """Return the seconds, or beyond a limit some lower bound that is beyond it, too."""
        seconds = super().propose(changes)
        self.proposals.append(self._proposed)
        return seconds if limit is None else min(seconds, limit(self.memory()) + 1e-9)


class Layers(Plans):
    """Equal layers of three operators with three choices: a step is short only where all layers are as one, and takes
    half as long with the right choices in it.
    """

    def __init__(self, layers, repeats=True):
        super().__init__([range(3)] * (3 * layers), lambda plan: (1.0 + sum(
            plan[place] != plan[place % 3] for place in range(3 * layers)) + sum(
            choice != place for place, choice in enumerate(plan[:3])) / 3, 1.0))
        self._repeats = repeats

    def alike(self, operator):
        return range(operator % 3, self.operators, 3) if self._repeats else [operator]


#: The splits of a layer: the dimension, and the number of ranks.
SPLITS = (SAMPLES, ('samples', 2), ('channels', 4), ('channels', 2), ('whole', 1))
#: Bytes that a link moves in a second.
RATE = 35e6


class SmallNetwork(Plans):
    """A chain of layers with a shortcut, each split by samples, by channels, or not at all; its sizes are drawn.

    As in real networks, the first layers compute much and have few weights, the last ones compute little and have many.
    """

    def __init__(self, seed, layers, splits=SPLITS):
        super().__init__([splits] * layers, lambda plan: (self._seconds_of(plan), self._bytes_of(plan)))
        depth, random = np.linspace(0, 1, layers), np.random.RandomState(seed)
        self._compute_s, self._weights, self._outputs = (
            (first * (last / first) ** depth * random.uniform(0.5, 2, layers)).tolist()
            for first, last in ((4e-3, 1.2e-3), (2e4, 2e6), (8e5, 4e4)))
        self._edges = [(layer, layer + 1) for layer in range(layers - 1)] + ([(0, 2)] if layers > 2 else [])

    def _seconds_of(self, plan):
        """Return the seconds of a forward pass and a backward pass; links sum gradients during the rest of the latter.
        """
        now_s, link_s = 0.0, 0.0
        for number, layer in enumerate([*range(self.operators), *reversed(range(self.operators))]):
            (dimension, degree), is_backward = plan[layer], number >= self.operators
            edges = [edge for edge in self._edges if edge[not is_backward] == layer]
            # The same samples are there already; all channels of an input are needed.
            now_s += sum(2e-4 + self._outputs[first] / RATE for first, last in edges
                         if plan[first] != plan[last] or plan[first][0] == 'channels')
            now_s += (1 + is_backward) * self._compute_s[layer] / degree + 1e-4
            if is_backward and dimension == 'samples':
                link_s = max(link_s, now_s) + 2 * self._weights[layer] * (degree - 1) / degree / RATE
        return max(now_s, link_s)

    def _bytes_of(self, plan):
        return sum(3 * weights / (degree if dimension == 'channels' else 1) + outputs / degree
                   for (dimension, degree), weights, outputs in zip(plan, self._weights, self._outputs))


def starts_of(layers):
    """Return two plans of a small network."""
    return {'samples': (SAMPLES,) * layers, 'whole': (('whole', 1),) * layers}


@pytest.mark.parametrize('layers', [2, 24])
@pytest.mark.parametrize('seed', range(4))
def test_many_repeated_blocks_need_no_more_proposals_than_two(layers, seed):
    start = {'start': (0, 0, 0) * layers}
    result = run_chains(Layers(layers), start, SearchLimits(proposals=100), seed)
    assert result.seconds == 1.0 and result.assignment == (0, 1, 2) * layers
    alone = run_chains(Layers(24, repeats=False), {'start': (0, 0, 0) * 24}, SearchLimits(proposals=100), seed)
    assert alone.seconds > 1.5


def test_all_blocks_become_as_one_of_them():
    result = run_chains(Layers(24), {'start': (0, 1, 2) + (2, 0, 1) * 23}, SearchLimits(proposals=100), 3)
    assert result.seconds == 1.0


@st.composite
def listed_plans(draw):
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    plans = itertools.product(*(range(count) for count in counts))
    return ListedPlans({plan: (draw(st.sampled_from([1.0, 2.0, 3.5, 7.0])), draw(st.integers(1, 4))) for plan in plans})


@given(listed_plans(), st.integers(1, 4))
def test_memory_is_a_hard_limit(problem, memory):
    fitting = [seconds for seconds, size in problem.values.values() if size <= memory]
    limits = SearchLimits(proposals=50, memory=memory)
    start = {'first': (0,) * problem.operators}
    if not fitting:
        for search in (lambda: try_all(problem, limits), lambda: run_chains(problem, start, limits)):
            with pytest.raises(InputError, match='limit of %d bytes' % memory):
                search()
        return
    result = try_all(problem, limits)
    assert result.seconds == min(fitting) and result.bytes <= memory
    try:
        result = run_chains(problem, start, limits)
    except InputError:  # a chain may find no plan that fits
        assert problem.values[start['first']][1] > memory
    else:
        assert result.bytes <= memory and (result.seconds, result.bytes) == problem.values[result.assignment]


@given(listed_plans())
def test_the_front_is_of_all_plans_seen(problem):
    result = try_all(problem)
    assert (result.seconds, result.bytes) == problem.values[result.assignment]
    assert result.seconds == min(seconds for seconds, _ in problem.values.values())
    worse = {plan for plan, (seconds, size) in problem.values.items()
             if any((a <= seconds and b <= size) and (a, b) != (seconds, size) for a, b in problem.values.values())}
    best = {value for plan, value in problem.values.items() if plan not in worse}
    assert sorted((point.seconds, point.bytes) for point in result.front) == sorted(best)
    assert all(problem.values[point.assignment] == (point.seconds, point.bytes) for point in result.front)
    assert [point.bytes for point in result.front] == sorted(point.bytes for point in result.front)


@given(listed_plans(), st.integers(1, 4) | st.none())
def test_lower_bounds_hide_no_plan_of_the_front(problem, memory):
    start = {'first': (0,) * problem.operators, 'last': max(problem.values)}
    try:
        result = run_chains(problem, start, SearchLimits(proposals=60, memory=memory))
    except InputError:
        return
    seen = {problem.values[plan] for plan in [*problem.proposals, *start.values()]}
    assert result.seconds == min(seconds for seconds, size in seen if memory is None or size <= memory)
    assert {(point.seconds, point.bytes) for point in result.front} == {
        value for value in seen if not any(seconds <= value[0] and size <= value[1] and (seconds, size) != value
                                           for seconds, size in seen)}


def test_a_front_asks_only_for_kept_plans():
    front = ParetoFront()
    front.add(2.0, 5, lambda: ('a',))
    front.add(2.0, 5, lambda: pytest.fail('as good as another'))
    front.add(3.0, 6, lambda: pytest.fail('worse'))
    front.add(3.0, 4, lambda: ('b',))
    front.add(2.0, 4, lambda: ('c',))
    assert [point.assignment for point in front.points()] == [('c',)]


@pytest.mark.parametrize('seed', range(8))
def test_chains_find_the_optimum(seed):
    best = try_all(SmallNetwork(seed, 4))
    starts = {'samples': (SAMPLES,) * 4, 'channels': (('channels', 4),) * 4}
    result = run_chains(SmallNetwork(seed, 4), starts, SearchLimits(proposals=1500), seed)
    assert result.seconds == best.seconds
    assert best.seconds < min(chain.seconds for chain in result.chains)


def test_chains_find_the_optimum_within_memory():
    free = try_all(SmallNetwork(3, 4))
    tight = SearchLimits(proposals=1500, memory=0.5 * (free.front[0].bytes + free.bytes))
    best = try_all(SmallNetwork(3, 4), tight)
    result = run_chains(SmallNetwork(3, 4), {'whole': (('whole', 1),) * 4}, tight)
    assert result.seconds == best.seconds > free.seconds
    assert result.bytes <= tight.memory < free.bytes


def test_a_seed_gives_one_result_despite_time_limits():
    first, again, timed, other = (
        run_chains(SmallNetwork(1, 5), starts_of(5), limits, seed)._replace(elapsed=0.0)
        for limits, seed in ((SearchLimits(proposals=200), 7), (SearchLimits(proposals=200), 7),
                             (SearchLimits(proposals=200, seconds=3600), 7), (SearchLimits(proposals=200), 8)))
    assert first == again == timed
    assert first.chains != other.chains


def test_a_search_ends_by_proposals_and_shares_them():
    progress = []
    result = run_chains(SmallNetwork(1, 5), starts_of(5), SearchLimits(proposals=101), watcher=progress.append)
    # The other chain begins with a much slower plan, and gets a quarter as many proposals.
    assert [(chain.start, chain.proposals) for chain in result.chains] == [('whole', 80), ('samples', 21)]
    assert {chain.ended for chain in result.chains} == {'proposals'}
    assert [step.proposals for step in progress] == list(range(1, 102)) and isinstance(progress[0], Progress)
    assert progress[-1].best == result.seconds == min(chain.best for chain in result.chains)
    assert [step.best for step in progress] == sorted((step.best for step in progress), reverse=True)


def test_far_starts_get_a_quarter_of_proposals():
    problem = ListedPlans({plan: (sum(plan) + 1.0, 1) for plan in itertools.product(range(2), repeat=8)})
    starts = {'far': (1,) * 8, 'here': (1,) + (0,) * 7, 'again': (1,) + (0,) * 7, 'there': (0,) * 7 + (1,)}
    result = run_chains(problem, starts, SearchLimits(proposals=450))
    assert [(chain.start, chain.seconds, chain.proposals, chain.ended) for chain in result.chains] == [
        ('here', 2.0, 200, 'proposals'), ('there', 2.0, 200, 'proposals'), ('again', 2.0, 0, 'same'),
        ('far', 9.0, 50, 'proposals')]
    assert result.seconds == 1.0 and len(problem.proposals) == 450


def test_a_chain_ends_when_patience_does():
    result = run_chains(SmallNetwork(1, 3), starts_of(3), SearchLimits(proposals=100_000, patience=60))
    assert {chain.ended for chain in result.chains} == {'patience'}
    assert all(60 <= chain.proposals < 3000 for chain in result.chains)


def test_a_watcher_may_end_a_search():
    result = run_chains(SmallNetwork(1, 5), starts_of(5), SearchLimits(seconds=3600),
                        watcher=lambda progress: progress.proposals == 70)
    assert [(chain.proposals, chain.ended) for chain in result.chains] == [(70, 'stopped'), (0, 'stopped')]
    assert result.seconds == min(chain.best for chain in result.chains)


def test_a_search_ends_by_time(monkeypatch):
    # A clock that goes on by a millisecond when it is read: each proposal reads it a few times.
    clock = itertools.count()
    monkeypatch.setattr(mcmc, 'time', types.SimpleNamespace(monotonic=lambda: next(clock) / 1000))
    result = run_chains(SmallNetwork(1, 5), starts_of(5), SearchLimits(seconds=0.6))
    assert 0.6 <= next(clock) / 1000 < 0.65
    assert [chain.ended for chain in result.chains] == ['seconds'] * 2
    assert all(chain.proposals > 20 for chain in result.chains)


def test_starts_count_even_without_a_proposal():
    result = run_chains(SmallNetwork(2, 4), starts_of(4), SearchLimits(proposals=0))
    assert result.seconds == min(chain.seconds for chain in result.chains)
    assert result.assignment in starts_of(4).values()
    assert [chain.seconds for chain in result.chains] == sorted(chain.seconds for chain in result.chains)


def test_a_network_without_choices_needs_no_search():
    result = run_chains(SmallNetwork(2, 3, SPLITS[:1]), {'samples': (SAMPLES,) * 3}, SearchLimits(seconds=3600))
    assert result.chains[0].ended == 'no choice' and result.assignment == (SAMPLES,) * 3


def test_a_search_without_an_end_is_refused():
    plan = SmallNetwork(0, 3)
    with pytest.raises(InputError, match='never ends'):
        run_chains(plan, {'samples': (SAMPLES,) * 3}, SearchLimits(memory=1e9))
    with pytest.raises(InputError, match='at least one plan'):
        run_chains(plan, {}, SearchLimits(proposals=1))
    with pytest.raises(InputError, match='2 choices for 3 operators'):
        run_chains(plan, {'samples': (SAMPLES,) * 2}, SearchLimits(proposals=1))


@pytest.mark.both_pythons
def test_collections_resume_and_skip_new_objects():
    new_objects = []
    with pytest.raises(KeyError):
        with paused_gc():
            assert not gc.isenabled()
            new_objects += [[] for _ in range(10_000)]
            raise KeyError
    assert gc.isenabled() and gc.get_freeze_count() == 0
    assert sum(isinstance(item, list) for item in gc.get_objects(generation=0)) < len(new_objects)


@pytest.mark.both_pythons
def test_a_frozen_or_disabled_collector_stays_so():
    objects = [[] for _ in range(10_000)]  # objects of other tests may be freed inside the block
    gc.freeze()
    try:
        with paused_gc():
            pass
        assert gc.get_freeze_count() >= len(objects)
    finally:
        gc.unfreeze()
    gc.disable()
    try:
        with paused_gc():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
