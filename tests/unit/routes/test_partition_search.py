"""The search for partition counts: fit, choice and budget, on made-up curves, and the time of a step."""
import math
import random

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from mxhybrid.base.settings import Settings
from mxhybrid.routes import partition_tuner as tuner
from mxhybrid.routes.partition_search import (
    BUDGET_SHARE,
    HORIZON_STEPS,
    MEASURED_STEPS,
    MIN_GAIN,
    MOVE_MARGIN,
    WARM_STEPS,
    WORST_RATIO,
    Candidate,
    Fit,
    Search,
    Tuning,
    best_count,
    fit,
)

from .alone import Alone

positive = st.floats(0.001, 10)
curves = st.builds(Fit, positive, st.one_of(st.just(0.0), positive), st.one_of(st.just(0.0), st.floats(0.0001, 1)))
starts = st.sampled_from([1, 2, 3, 4, 7, 8, 16])


def no_cost(old, new, known):
    """Moves for nothing."""
    return 0.0


def play(tuning, step, move=no_cost):
    """Play a job: ``step(counts)`` gives the seconds of a step, ``move`` those of a move. Returns the moves made."""
    counts = {table.name: table.count for table in tuning.candidates}
    moves = []
    while True:
        decision = tuning.next()
        if decision is None:
            assert counts == {table.name: table.count for table in tuning.candidates}
            return moves
        table, count = decision
        assert count != counts[table.name]
        took = move(table, counts[table.name], count)
        counts[table.name] = count
        moves.append((table.name, count))
        assert len(moves) < 1000, 'the search does not end'
        seconds = step(counts)
        tuning.observe(took, WARM_STEPS * seconds, seconds)


def one_table(start, seconds, cost=no_cost, steps=0, highest=64):
    """Return a table with up to `highest` partitions, and the tuning of this table alone."""
    table = Candidate('table', start, 1, highest, cost)
    return table, Tuning([table], seconds, steps)


# ------------------------------------------------------------------------------------------ fit


@hypothesis_settings(deadline=None)
@given(curves, st.sets(st.integers(1, 512), min_size=3, max_size=9))
def test_fit_gives_back_an_exact_curve(curve, counts):
    found = fit({count: curve.seconds(count) for count in counts})
    for count in counts:
        assert found.seconds(count) == pytest.approx(curve.seconds(count), rel=1e-5)
    assert found.shared >= 0 and found.each >= 0


@hypothesis_settings(deadline=None)
@given(positive, st.floats(0.1, 10), st.floats(0.01, 1))
def test_the_best_count_of_an_exact_curve(constant, shared, each):
    curve = Fit(constant, shared, each)
    found = fit({count: curve.seconds(count) for count in (1, 2, 4, 8, 16, 32, 64)})
    assert found.best == pytest.approx(math.sqrt(shared / each), rel=1e-3)


def test_curves_without_a_minimum():
    counts = (1, 2, 4, 8)
    assert fit({count: 1 + 2 / count for count in counts}).best == math.inf
    assert fit({count: 1 + 2 * count for count in counts}).best == pytest.approx(0, abs=1e-3)
    assert math.isnan(fit(dict.fromkeys(counts, 1.0)).best)
    assert fit({1: 1.0, 2: 2.0}) is None


@hypothesis_settings(deadline=None)
@given(st.lists(st.floats(0.001, 100), min_size=3, max_size=8))
def test_fit_takes_any_samples(seconds):
    samples = {2 ** place: value for place, value in enumerate(seconds)}
    found = fit(samples)
    assert found.shared >= 0 and found.each >= 0
    mean = sum(seconds) / len(seconds)
    error = sum((found.seconds(count) - value) ** 2 for count, value in samples.items())
    assert error <= sum((mean - value) ** 2 for value in seconds) * (1 + 1e-9) + 1e-9


# ------------------------------------------------------------------------------------------ search


@hypothesis_settings(deadline=None)
@given(st.floats(0.05, 2), st.floats(0.2, 10), st.floats(0.005, 0.5), starts, st.integers(0, 10 ** 6))
def test_noisy_curves_are_found_within_tolerance(constant, shared, each, start, seed):
    """Noise of 1 %: the count found costs at most 12 % more than the best of all; P* within a factor of 3."""
    noise = random.Random(seed)
    curve = Fit(constant, shared, each)
    table, tuning = one_table(start, curve.seconds(start), highest=256)
    tuning.budget.total = math.inf
    play(tuning, lambda counts: curve.seconds(counts['table']) * (1 + noise.uniform(-0.01, 0.01)))
    best = min(max(curve.best, 1), 256)
    assert table.finished
    assert curve.seconds(table.count) <= 1.12 * curve.seconds(best)
    if curve.seconds(3 * best) > 1.2 * curve.seconds(best) < curve.seconds(best / 3):
        assert best / 3 <= table.count <= 3 * best


@hypothesis_settings(deadline=None)
@given(curves, starts, st.integers(1, 3), st.integers(16, 300))
def test_searches_end_and_stay_inside_their_limits(curve, start, lowest, highest):
    search = Search(start, lowest, highest)
    for _ in range(30):
        count = search.next_count()
        if count is None:
            break
        assert count not in search.samples and min(lowest, start) <= count <= highest
        search.observe(count, curve.seconds(count))
    assert search.next_count() is None
    assert len(search.samples) <= 2 + math.log2(highest)
    best = best_count(search.samples, start)
    assert min(search.samples) <= best <= max(search.samples)


@hypothesis_settings(deadline=None)
@given(st.lists(st.floats(0.001, 100), min_size=40, max_size=40), starts)
def test_searches_end_whatever_they_see(noise, start):
    search = Search(start, 1, 256)
    for seconds in noise:
        if search.next_count() is not None:
            search.observe(search.next_count(), seconds)
    assert search.next_count() is None
    assert best_count(search.samples, start) >= 1


@pytest.mark.parametrize('start, times, expected', [
    (2, {1: 9.0, 2: 8.0, 4: 7.0, 8: 6.0, 16: 6.5}, [2, 4, 8, 16]),
    (8, {1: 5.0, 2: 6.0, 4: 7.0, 8: 8.0, 16: 9.0}, [8, 16, 4, 2, 1])])
def test_doubling_then_halving_goes_on_while_it_helps(start, times, expected):
    search, seen = Search(start, 1, 64), []
    while search.next_count() is not None:
        seen.append(search.next_count())
        search.observe(seen[-1], times[seen[-1]])
    assert seen == expected


def test_a_difference_within_the_noise_moves_nothing():
    gain = MIN_GAIN / 2
    assert best_count({1: 1.0, 2: 1.0, 4: 1 - gain}, 2) == 2
    assert best_count({1: 1.0, 2: 1.0, 4: 0.9}, 2) == 4


def test_the_fits_optimum_must_be_clearly_better():
    sharp = {count: 100 / count + count for count in (1, 2, 4, 8, 16, 32)}  # 20 s at 10, 20.5 s at 8
    assert best_count(sharp, 1) == 10
    flat = {count: 100 + value for count, value in sharp.items()}
    assert best_count(flat, 1) == 8


# ------------------------------------------------------------------------------------------ budget


@hypothesis_settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(curves, starts, st.floats(0, 3)), min_size=1, max_size=4), st.floats(0, MOVE_MARGIN),
       st.floats(0, 0.05), st.integers(0, 10 ** 6))
def test_the_budget_is_never_exceeded(tables, dearer, spread, seed):
    """Moves cost up to MOVE_MARGIN times their estimate, steps vary by up to 5 %."""
    noise = random.Random(seed)
    models = {'table%d' % index: curve for index, (curve, _, _) in enumerate(tables)}
    costs = {'table%d' % index: cost for index, (_, _, cost) in enumerate(tables)}

    def cost(name):
        return lambda old, new, known: costs[name] * (0.2 if new in known else 1.0)

    candidates = [Candidate('table%d' % index, start, 1, 256, cost('table%d' % index))
                  for index, (_, start, _) in enumerate(tables)]
    known = {table.name: {table.count} for table in candidates}
    rest = 0.1

    def step(counts):
        return rest + sum(models[name].seconds(count) for name, count in counts.items())

    def move(table, old, new):
        estimate = costs[table.name] * (0.2 if new in known[table.name] else 1.0)
        known[table.name].add(new)
        return dearer * estimate

    before = step({table.name: table.count for table in candidates})
    tuning = Tuning(candidates, before, 10)
    assert tuning.budget.total == BUDGET_SHARE * HORIZON_STEPS * before
    play(tuning, lambda counts: step(counts) * (1 + noise.uniform(-spread, spread)), move)
    assert tuning.budget.lost <= tuning.budget.total * (1 + 1e-9)
    assert all(table.reason for table in candidates)
    assert tuning.steps <= HORIZON_STEPS + (WARM_STEPS + MEASURED_STEPS) * len(candidates)


def test_a_costly_move_is_omitted_with_a_reason():
    table, tuning = one_table(2, 0.1, lambda old, new, known: 100.0)
    assert play(tuning, lambda counts: 0.1) == []
    assert not table.finished and table.count == 2
    assert table.reason.startswith('trying 4 partitions could cost') and '2.5 s of 2.5 s are left' in table.reason


def test_a_table_returns_to_its_best_count():
    def step(counts):
        return 1 + 4 / counts['a'] + 0.25 * counts['a'] + 0.5 * counts['b']

    tables = [Candidate('a', 2, 1, 64, no_cost), Candidate('b', 2, 1, 64, no_cost)]
    tuning = Tuning(tables, step({'a': 2, 'b': 2}), 10)
    moves = play(tuning, step)
    assert moves == [('a', 4), ('a', 8), ('a', 4), ('b', 4), ('b', 1)]
    assert tables[1].search.samples == {1: step({'a': 4, 'b': 1}), 2: step({'a': 4, 'b': 2}),
                                        4: step({'a': 4, 'b': 4})}
    assert tuning.seconds == step({'a': 4, 'b': 1})
    # Worse than before were only the steps of the sample of b with 4 partitions, if at all.
    worse = step({'a': 4, 'b': 4}) - step({'a': 2, 'b': 2})
    assert tuning.budget.lost == pytest.approx(max(0, worse) * (WARM_STEPS + MEASURED_STEPS))


def test_a_disappointing_optimum_is_left_again():
    times = {1: 101.0, 2: 52.0, 4: 29.0, 8: 20.5, 16: 22.25, 32: 35.0}
    table, tuning = one_table(1, 101.0)
    assert play(tuning, lambda counts: times.get(counts['table'], 19.0))[-2:] == [('table', 16), ('table', 10)]
    assert table.search.samples[10] == 19.0
    table, tuning = one_table(1, 101.0)
    moves = play(tuning, lambda counts: times.get(counts['table'], 25.0))
    assert moves[-2] == ('table', 10) and moves[-1] == ('table', 8) == ('table', table.count)


def test_a_dear_optimum_is_omitted_with_a_reason():
    times = {1: 101.0, 2: 52.0, 4: 29.0, 8: 20.5, 16: 22.25}
    table, tuning = one_table(1, 101.0, lambda old, new, known: 2000 if new == 10 else 1)
    assert play(tuning, lambda counts: times[counts['table']])[-1] == ('table', 8)
    assert table.finished and 'trying 10, the optimum of the fit, could cost 3e+03 s' in table.reason


def test_nothing_is_tried_after_the_horizon():
    table, tuning = one_table(2, 1.0, steps=HORIZON_STEPS)
    assert play(tuning, lambda counts: 1.0) == []
    assert 'steps are over' in table.reason


def test_a_pause_among_warm_steps_is_tolerated():
    table, tuning = one_table(1, 1.0)
    assert tuning.next() == (table, 2)
    tuning.observe(0.0, WARM_STEPS * 0.8 + 1000, 0.8)
    assert tuning.budget.lost == WARM_STEPS * (WORST_RATIO - 1)
    assert tuning.next() == (table, 4)


def test_slow_moves_count_more_from_then_on():
    table, tuning = one_table(1, 1.0, lambda old, new, known: 0.5)
    assert tuning.next() == (table, 2)
    tuning.observe(10.0, WARM_STEPS * 0.5, 0.5)
    assert tuning.next() is None and table.count == 2
    assert 'could cost' in table.reason


def test_no_tables():
    assert Tuning([], 1.0).next() is None


@pytest.mark.parametrize('waits, seconds', [(range(0), [2, 97, 1, 1]), (range(4, 100), [2, 1, 1])],
                         ids=['never', 'after the second step'])
def test_steps_in_which_the_search_waited_are_omitted(monkeypatch, waits, seconds):
    """A step lasts from a push of a key to the next one."""
    clock = [0.0]
    monkeypatch.setattr(tuner.time, 'perf_counter', lambda: clock[0])
    search = tuner.Tuner(Settings(partitions=(('*', 'auto'),)), Alone(), 2, {}, 'unit')

    def push(*times):
        for clock[0] in times:
            search.before_push('a')
            search.before_push('b')
    push(1, 3)
    for clock[0] in waits:
        search.pause()
    push(100, 101, 102)
    assert search._seconds == seconds
