"""The order in which a stage of a pipeline makes the forward and backward passes of micro-batches.

The order follows from the schedule and the number of the stage alone.  All stages make the forward passes in the order
of the micro-batches, and the backward passes in the same order, so that transfers between two stages come in one order
on both sides.
"""
from typing import List, NamedTuple


class Pass(NamedTuple):
    """A pass of a micro-batch through a stage."""

    is_forward: bool
    micro_batch: int


def passes(schedule: str, stage: int, stages: int, micro_batches: int) -> List[Pass]:
    """Return the passes of a stage in their order.

    With ``'1f1b'`` a stage makes as many forward passes as there are stages after it, and then a forward and a
    backward pass in turn; with ``'eager-1f1b'`` it makes twice as many forward passes first, so that it computes while
    activations and gradients are under way; with ``'gpipe'`` it makes all forward passes before the first backward
    pass.

    With s stages and m micro-batches, a step waits for 2 m (s - 1) / s + s transfers with ``'1f1b'``, and for 2 (s - 1)
    with the others.  If a transfer takes t times as long as the passes of a micro-batch in a stage, n waits make the
    step 1 + n t / (m + s - 1) times as long.
    """
    warm_up = most_alive(schedule, stage, stages, micro_batches)
    if warm_up < micro_batches:  # the last one of these comes just before a backward pass
        warm_up -= 1
    order = [Pass(True, micro_batch) for micro_batch in range(warm_up)]
    for micro_batch in range(micro_batches):
        if warm_up + micro_batch < micro_batches:
            order.append(Pass(True, warm_up + micro_batch))
        order.append(Pass(False, micro_batch))
    return order


def most_alive(schedule: str, stage: int, stages: int, micro_batches: int) -> int:
    """Return the highest number of micro-batches whose activations a stage holds."""
    if schedule == 'gpipe':
        return micro_batches
    behind = stages - 1 - stage
    return min(micro_batches, (2 * behind if schedule == 'eager-1f1b' else behind) + 1)
