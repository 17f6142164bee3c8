"""Schedules of pipelines: passes overlap, hold few micro-batches, and never wait for each other in a circle."""
import itertools

import pytest

from mxhybrid.parallel.plans.stages import SCHEDULES
from mxhybrid.parallel.runtime.schedule import Pass, most_alive, passes

CASES = [(schedule, stages, micro_batches) for schedule in SCHEDULES for stages in (1, 2, 3, 4, 7)
         for micro_batches in (1, 2, 3, 4, 8, 13)]


def all_passes(schedule, stages, micro_batches):
    return [passes(schedule, stage, stages, micro_batches) for stage in range(stages)]


@pytest.mark.parametrize('schedule, stages, micro_batches', CASES)
def test_every_stage_makes_every_pass_once_and_in_order(schedule, stages, micro_batches):
    for order in all_passes(schedule, stages, micro_batches):
        for is_forward in (True, False):
            assert [some.micro_batch for some in order if some.is_forward == is_forward] == list(range(micro_batches))
        for micro_batch in range(micro_batches):
            assert order.index(Pass(True, micro_batch)) < order.index(Pass(False, micro_batch))


@pytest.mark.parametrize('schedule, stages, micro_batches', CASES)
def test_a_stage_holds_as_many_micro_batches_as_promised(schedule, stages, micro_batches):
    for stage, order in enumerate(all_passes(schedule, stages, micro_batches)):
        alive = list(itertools.accumulate(1 if some.is_forward else -1 for some in order))
        assert max(alive) == most_alive(schedule, stage, stages, micro_batches)
        assert schedule == 'gpipe' or max(alive) <= {'1f1b': stages - stage,
                                                     'eager-1f1b': 2 * (stages - stage) - 1}[schedule]


def clock_of(schedule, stages, micro_batches):
    """Return when each pass ends, if forward passes take one tick, and backward ones two; StopIteration in a circle."""
    orders = [iter(order) for order in all_passes(schedule, stages, micro_batches)]
    following = [next(order) for order in orders]
    ends, clocks = {}, [0] * stages
    while any(following):
        ready = next(stage for stage, some in enumerate(following) if some is not None and all(
            needed in ends for needed in needs_of(stage, some, stages)))
        some = following[ready]
        start = max([clocks[ready]] + [ends[needed] for needed in needs_of(ready, some, stages)])
        clocks[ready] = ends[(ready, *some)] = start + (1 if some.is_forward else 2)
        following[ready] = next(orders[ready], None)
    return ends


def needs_of(stage, some, stages):
    """Return the passes of other stages that a pass waits for."""
    if some.is_forward:
        return [(stage - 1, *some)] if stage else []
    return [(stage + 1, *some)] if stage < stages - 1 else [(stage, True, some.micro_batch)]


@pytest.mark.parametrize('schedule, stages, micro_batches', CASES)
def test_stages_overlap(schedule, stages, micro_batches):
    """A step takes as long as m + s - 1 micro-batches in one stage: no schedule of this kind takes less."""
    ends = clock_of(schedule, stages, micro_batches)
    assert len(ends) == 2 * stages * micro_batches
    assert max(ends.values()) == 3 * (micro_batches + stages - 1)


@pytest.mark.parametrize('schedule, stages, micro_batches', CASES)
def test_transfers_do_not_wait_in_a_circle(schedule, stages, micro_batches):
    """A sender waits for its receiver, a pass for earlier ones, and a forward pass for a micro-batch's memory, too."""
    done, waiting = set(), {}
    for stage, order in enumerate(all_passes(schedule, stages, micro_batches)):
        slots = most_alive(schedule, stage, stages, micro_batches)
        for some in order:
            peers = [(stage - 1, stage), (stage, stage + 1)] if some.is_forward else [(stage + 1, stage),
                                                                                      (stage, stage - 1)]
            transfers = [(source, target, *some) for source, target in peers if 0 <= source < stages > target >= 0]
            before = [(stage, some.is_forward, some.micro_batch - 1)] if some.micro_batch else []
            if some.is_forward and some.micro_batch >= slots:
                before.append((stage, False, some.micro_batch - slots))
            if not some.is_forward:
                before.append((stage, True, some.micro_batch))
            waiting[(stage, *some)] = (before, transfers)
    # A pass is done once the passes before it are done, and once its transfers, in their order, are made on both sides.
    positions = dict.fromkeys(waiting, 0)
    while waiting:
        can = {name for name, (before, _) in waiting.items() if all(needed in done for needed in before)}
        offered = {}
        for name in can:
            transfers = waiting[name][1]
            if positions[name] < len(transfers):
                offered.setdefault(transfers[positions[name]], []).append(name)
        moved = [names for names in offered.values() if len(names) == 2]
        ended = [name for name in can if positions[name] == len(waiting[name][1])]
        assert moved or ended, 'stages wait for each other: %s' % sorted(waiting)
        for name in [name for names in moved for name in names]:
            positions[name] += 1
        for name in ended:
            done.add(name)
            del waiting[name]
