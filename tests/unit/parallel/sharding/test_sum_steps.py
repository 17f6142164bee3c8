"""Sums in one step and in two: values, bits that all ranks share, and the bytes that each rank sends."""
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mxhybrid.parallel.redistribution.redistribution import Redistribution
from mxhybrid.parallel.sharding import sum_steps
from mxhybrid.parallel.sharding.box import full, overlap, shape_of, size_of, slices_in, split_shape
from mxhybrid.parallel.sharding.layout import Layout, Movement
from mxhybrid.parallel.sharding.sum_steps import steps_between, sum_pieces


def transferred(transfers, sources, target_shapes):
    """Return the targets of a transfer of all ranks."""
    sent = {}
    for rank, transfer in enumerate(transfers):
        for to, where in transfer.sends:
            sent.setdefault((rank, to), []).append(sources[rank][where].copy())
    targets = []
    for rank, (transfer, shape) in enumerate(zip(transfers, target_shapes)):
        if shape is None:
            assert not transfer.receives and not transfer.local
            targets.append(None)
            continue
        dtype = next(source.dtype for source in sources if source is not None)
        target = np.zeros(shape, dtype) if transfer.adds else np.full(shape, transfer.fill, dtype)
        arrived = {}
        for giver, where in transfer.receives:
            arrived.setdefault(giver, []).append((where, sent[giver, rank].pop(0)))
        arrived[rank] = [(there, sources[rank][here]) for here, there in transfer.local]
        for giver in sorted(arrived):
            for where, values in arrived[giver]:
                if transfer.adds:
                    target[where] += values
                else:
                    target[where] = values
        targets.append(target)
    assert not any(sent.values())
    return targets


class Steps:
    """The redistributions of a sum, as all ranks see them."""

    def __init__(self, ranks, layout, needed, dtype, one_gradient=False):
        steps = steps_between(layout, needed, np.dtype(dtype).itemsize)
        self.steps = [[Redistribution(number, rank, Movement(
            held, boxes, dtype, one_gradient=one_gradient and number == len(steps) - 1)) for rank in range(ranks)]
                      for number, (held, boxes) in enumerate(steps)]

    def transfer(self, direction, arrays):
        """Return the targets of all steps, 'forward' or 'backward'."""
        for redistributions in self.steps if direction == 'forward' else reversed(self.steps):
            arrays = transferred([getattr(one, direction) for one in redistributions], arrays,
                                 [one.shapes[direction == 'forward'] for one in redistributions])
        return arrays

    def most_sent(self, direction):
        """Return the bytes that the busiest rank sends."""
        return sum(np.array([getattr(one, direction).bytes_sent(one.dtype.itemsize) for one in redistributions])
                   for redistributions in self.steps).max()


def partial_sums(random, layout, ranks, dtype):
    return [random.normal(size=shape_of(layout.boxes[rank])).astype(dtype) * 9 if rank in layout.boxes else None
            for rank in range(ranks)]


@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64', 'int32'])
@pytest.mark.parametrize('shape', [(64, 33, 40), (7, 8209), (5, 3, 4099), (50021,)])
@pytest.mark.parametrize('ranks', [2, 3, 4, 7])
def test_bytes_and_bits_of_an_allreduce(ranks, shape, dtype):
    whole = dict.fromkeys(range(ranks), full(shape))
    steps = Steps(ranks, Layout(shape, whole, True), whole, dtype)
    assert len(steps.steps) == (1 if ranks == 2 else 2)
    size, itemsize = size_of(full(shape)), np.dtype(dtype).itemsize
    most = 2 * (ranks - 1) / ranks * size * itemsize
    random = np.random.RandomState(ranks)
    sources = partial_sums(random, Layout(shape, whole, True), ranks, dtype)
    expected = np.zeros(shape, dtype)
    for source in sources:
        expected += source
    for direction in ('forward', 'backward'):
        assert most * 0.99 <= steps.most_sent(direction) <= most * (1 + 2 * sum_steps._UNEVENNESS)
        assert [result.tobytes() for result in steps.transfer(direction, sources)] == [expected.tobytes()] * ranks


def test_small_and_single_rank_sums_take_one_step():
    ranks, shape = 4, (64, 1024)
    whole = dict.fromkeys(range(ranks), full(shape))
    rows = dict(enumerate(split_shape(shape, (ranks, 1))))
    for needed, itemsize, steps in ((whole, 4, 2), (rows, 4, 1), ({0: full(shape)}, 4, 1)):
        assert len(steps_between(Layout(shape, whole, True), needed, itemsize)) == steps
    # Two steps save (n - 1) (n - 2) / n of the sum.
    least = sum_steps.MIN_SAVED_BYTES * ranks // ((ranks - 1) * (ranks - 2))
    for count, steps in ((least // 4 - ranks, 1), (least // 4 + ranks, 2)):
        needed = dict.fromkeys(range(ranks), ((0, count),))
        assert len(steps_between(Layout((count,), needed, True), needed, 4)) == steps
    assert len(steps_between(Layout(shape, rows), whole, 4)) == 1


@pytest.mark.parametrize('one_gradient', [False, True])
def test_one_ranks_gradient_goes_to_all_partial_sums(one_gradient):
    ranks, shape = 4, (13, 5000)
    whole = dict.fromkeys(range(ranks), full(shape))
    steps = Steps(ranks, Layout(shape, whole, True), whole, 'float64', one_gradient)
    gradients = partial_sums(np.random.RandomState(0), Layout(shape, whole), ranks, 'float64')
    expected = gradients[0] if one_gradient else sum(gradients[1:], gradients[0])
    for result in steps.transfer('backward', gradients):
        np.testing.assert_array_equal(result, expected)
    assert steps.most_sent('backward') < 1.7 * gradients[0].nbytes


@st.composite
def sums(draw):
    """Draw a shape, the boxes of partial sums, and the boxes that ranks need, some of them equal."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    ranks = draw(st.integers(3, 6))

    def boxes_by_rank(beyond):
        degrees = [draw(st.integers(1, min(count, 2))) for count in shape]
        boxes = split_shape(shape, degrees)
        chosen = {rank: draw(st.sampled_from(boxes)) for rank in draw(st.sets(st.integers(0, ranks - 1), min_size=1))}
        return {rank: tuple((low - beyond, high) for low, high in box) for rank, box in chosen.items()}
    held = boxes_by_rank(0) if draw(st.booleans()) else dict.fromkeys(range(2, ranks), full(shape))
    return ranks, Layout(shape, held, True), boxes_by_rank(draw(st.integers(0, 1)))


@settings(max_examples=200, deadline=None)
@given(sums())
def test_two_steps_have_bits_and_bytes_of_one(drawn):
    ranks, layout, needed = drawn
    direct = Steps(ranks, layout, needed, 'float32')
    limit, sum_steps.MIN_SAVED_BYTES = sum_steps.MIN_SAVED_BYTES, 1
    try:
        two, pieces = Steps(ranks, layout, needed, 'float32'), sum_pieces(layout, needed, 4)
    finally:
        sum_steps.MIN_SAVED_BYTES = limit
    assert len(direct.steps) == 1 and len(two.steps) == (1 if pieces is None else 2)
    random = np.random.RandomState(0)
    sources = partial_sums(random, layout, ranks, 'float32')
    gradients = partial_sums(random, Layout(layout.shape, needed), ranks, 'float32')
    for direction, arrays in (('forward', sources), ('backward', gradients)):
        for result, expected in zip(two.transfer(direction, arrays), direct.transfer(direction, arrays)):
            assert (result is None) == (expected is None)
            if expected is not None:
                np.testing.assert_array_equal(result, expected)
    count = np.zeros(layout.shape, int)
    for box in layout.boxes.values():
        count[slices_in(box, full(layout.shape))] += 1
    for forward_or_backward in (0, 1) if count.min() > 1 else ():  # as after a split into partials
        sent = [sum(redistributions[0].bytes[forward_or_backward] for redistributions in steps.steps)
                for steps in (direct, two)]
        assert sent[1] <= sent[0]
    if pieces is not None:
        boxes = list(pieces.items())
        assert all(overlap(box, needed[rank]) == box for rank, box in boxes)
        assert not any(overlap(box, other) for at, (_, box) in enumerate(boxes) for _, other in boxes[:at])
