"""Rows and dense sums that travel as int8, in jobs of several hosts: bits, bytes, errors and error feedback."""
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from mxhybrid.base.errors import JobError
from mxhybrid.lane.row_format import RowFormat, row_format

from ...oracles.int8 import ANSWERS, BLOCK, Feedback, random_fractions, rounded
from .hosts import UNCACHED, hosts, lib
from .test_allreduce import SHAPES

#: Floats of all sizes, mostly of a few.
FLOATS = st.floats(width=32) | st.floats(-100, 100, width=32) | st.sampled_from(
    [float(np.float32(value)) for value in (0.0, -0.0, -1e-38, 2.0 ** -119, 1e-30, 3e38, np.inf, np.nan)])
#: Positions of hosts' pushed rows, contributions and results in counts of traffic: ``enum Message``.
PUSH, ROWS, CONTRIBUTION, RESULT = 1, 3, 5, 6


def rows_of(width, count, seed=0):
    random = np.random.RandomState(seed)
    return (random.normal(size=(count, width)) * 10.0 ** random.uniform(-6, 3, (count, 1))).astype(np.float32)


def pulled(values, form, exact=False):
    """Push rows from host 1 to host 0, which owns them; return them as pulled on both hosts, and as they are there."""
    count, width = values.shape
    with hosts([1, 1], [1, 1]) as job:
        job.table(4, count, width, [0, 0, 0], row_format=form)
        ids = np.arange(count)
        job.push_alone(1, 4, ids, values, exact)
        stored = job.pull(1, 4, ids, UNCACHED)
        return job.pull(0, 4, ids), job.pull(1, 4, ids), stored


@given(arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 40)), elements=FLOATS))
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
def test_pulled_rows_are_rounded_and_exact_pushes_not(values):
    here, there, stored = pulled(values, RowFormat.INT8, exact=True)
    np.testing.assert_array_equal(stored, values)
    with np.errstate(over='ignore'):
        expected = np.stack([rounded(row) for row in values])
    for found in (here, there):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize('width', [2, 8, 63, 64, 65, 1500])
def test_pushed_rows_are_rounded_by_documented_random_numbers(width):
    values = rows_of(width, 7)
    here, there, stored = pulled(values, RowFormat.INT8)
    for row, (value, arrived) in enumerate(zip(values, stored)):
        np.testing.assert_array_equal(arrived, rounded(value, random_fractions(row, 1, 4, 1, width)))
    np.testing.assert_array_equal(there, np.stack([rounded(row) for row in stored]))
    np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize('width', [2, 64, 1500])
def test_pulled_sums_are_rounded_equally_on_all_hosts(width):
    values = rows_of(width, 7)
    here, there, stored = pulled(values, RowFormat.INT8_SUMS, exact=True)
    np.testing.assert_array_equal(stored, values)
    np.testing.assert_array_equal(here, there)
    for row, (value, arrived) in enumerate(zip(values, there)):
        np.testing.assert_array_equal(arrived, rounded(value, random_fractions(row, 1, 4, ANSWERS, width)))


def test_the_mean_of_many_pushes_is_the_value():
    values = np.tile(np.array([[1, 0.001, -0.3, 0, 127 / 127, -0.0042]], np.float32), (4000, 1))
    stored = pulled(values, RowFormat.INT8)[2]
    quantum = 1 / 127
    assert np.abs(stored - values).max() <= quantum * 1.001
    # The standard deviation of a rounded element is half a quantum at most; five deviations of the mean.
    assert np.abs(stored.mean(axis=0, dtype='f8') - values[0]).max() < 5 * quantum / 2 / np.sqrt(len(values))
    assert (stored[:, [3]] == 0).all() and len(np.unique(stored[:, 1])) == 2


def test_infinite_rows_arrive_as_nan_tiny_as_zeros():
    values = np.ones((6, 3), np.float32)
    values[0, 1], values[1, 2], values[2, 0] = np.inf, -np.inf, np.nan
    values[3], values[4] = 1e-37, 0
    stored = pulled(values, RowFormat.INT8)[2]
    assert np.isnan(stored[:3]).all() and (stored[3:5] == 0).all() and np.allclose(stored[5], 1)


@pytest.mark.parametrize('width, form, bytes_of_row', [
    (64, RowFormat.EXACT, 256), (64, RowFormat.FLOAT16, 128), (64, RowFormat.INT8, 68), (2, RowFormat.INT8_SUMS, 6)])
def test_bytes_of_rows(width, form, bytes_of_row):
    assert form.row_bytes(width, np.dtype('f4')) == bytes_of_row
    with hosts([1, 1], [1, 1]) as job:
        job.table(0, 1000, width, [0], row_format=form)
        job.push_alone(1, 0, np.arange(1000), np.ones((1000, width)))
        job.pull(1, 0, np.arange(1000))
        sent, received = job.traffic(1)
        ids, headers = 4 * 1000, 32 + 4 * 10
        assert 1000 * bytes_of_row + ids <= sent[PUSH] <= 1000 * bytes_of_row + ids + headers
        assert 1000 * bytes_of_row <= received[ROWS] <= 1000 * bytes_of_row + headers


@pytest.mark.parametrize('dtype, wire_dtype, width, sums, form', [
    ('f4', 'f4', 8, False, RowFormat.EXACT), ('f8', 'f8', 8, False, RowFormat.EXACT),
    ('f4', 'f2', 8, False, RowFormat.FLOAT16), ('f4', 'i1', 8, False, RowFormat.INT8),
    ('f4', 'i1', 8, True, RowFormat.INT8_SUMS), ('f4', 'i1', 1, False, RowFormat.EXACT)])  # 5 bytes are more than 4
def test_the_form_follows_types_and_width(dtype, wire_dtype, width, sums, form):
    assert row_format(np.dtype(dtype), np.dtype(wire_dtype), width, sums) is form


def test_dynamic_tables_round_as_other_tables():
    keys = np.array([-2 ** 62, -5, 0, 7, 2 ** 40], np.int64)
    values = rows_of(9, len(keys))
    with hosts([2, 1], [1, 1]) as job:
        job.dynamic_table(3, 9, [0, 1, 0], row_format=RowFormat.INT8)
        job.push_alone(2, 3, keys, values)
        exact = job.pull(0, 3, keys, UNCACHED)
        for key, value, arrived in zip(keys, values, exact):  # rows of partitions on host 1 did not travel
            by_chance = rounded(value, random_fractions(int(key), 1, 3, 1, 9))
            assert (arrived == value).all() or (arrived == by_chance).all()
        for worker in range(3):
            np.testing.assert_array_equal(job.pull(worker, 3, keys), np.stack([rounded(row) for row in exact]))


# ------------------------------------------------------------------------------------------ dense sums


COUNTS = [1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 40001, 400003]


def gradient(worker, step, count):
    random = np.random.RandomState([worker, step, count])
    return (random.normal(size=count) * 10.0 ** random.uniform(-3, 1, count)).astype(np.float32)


@pytest.mark.parametrize('count', COUNTS)
@pytest.mark.parametrize('shape', ['two', 'uneven', 'idle'])
def test_sums_are_equal_and_errors_added_later(shape, count):
    steps = 5
    with hosts(*SHAPES[shape]) as job:
        buffers = job.allreduce(11, 'float32', count, quantized=True)
        workers, sums = len(job.workers), np.zeros(count)
        totals, most = np.zeros(count), 0.0
        for step in range(steps):
            outputs = job.everywhere(lambda worker, step=step: buffers[worker].run(gradient(worker, step, count)))
            for output in outputs[1:]:
                np.testing.assert_array_equal(output, outputs[0])
            sums += outputs[0]
            exact = sum(gradient(worker, step, count).astype('f8') for worker in range(workers))
            totals += exact
            most = max(most, max(np.abs(gradient(worker, step, count)).max() for worker in range(workers)) * workers)
        # Each host and the owner of a chunk keep at most half a quantum of a value, which is at most twice `most`.
        quanta = (1 + sum(count > 0 for count in job.workers_on)) / 2
        assert np.abs(sums - totals).max() <= quanta * 2 * most / 127 + 1e-5 * most * steps
        squares = np.zeros(2)
        lib.allreduce_squares(buffers[0].pointer, squares.ctypes.data_as(lib.allreduce_squares.argtypes[1]))
        assert count < 1000 or 0 < squares[1] < squares[0]


def test_two_hosts_give_the_bits_of_the_arithmetic():
    count = 5000  # one chunk: host 0 owns it, and host 1 sends its values
    sent, result = Feedback(count), Feedback(count)
    with hosts([1, 1], [1, 1]) as job:
        buffers = job.allreduce(2, 'float32', count, quantized=True)
        for step in range(4):
            values, others = [gradient(worker, step, count) for worker in range(2)]
            outputs = job.everywhere(lambda worker, step=step: buffers[worker].run(gradient(worker, step, count)))
            np.testing.assert_array_equal(outputs[0], result.round(values + sent.round(others)))


def test_one_host_is_exact():
    with hosts([2], [1]) as job:
        buffers = job.allreduce(1, 'float32', 1000, quantized=True)
        outputs = job.everywhere(lambda worker: buffers[worker].run(gradient(worker, 0, 1000)))
        np.testing.assert_array_equal(outputs[0], gradient(0, 0, 1000) + gradient(1, 0, 1000))


@pytest.mark.parametrize('bad', [np.inf, -np.inf, np.nan])
def test_an_infinite_value_spoils_no_later_sum(bad):
    with hosts([1, 1], [1, 1]) as job:
        buffers = job.allreduce(1, 'float32', 1000, quantized=True)
        values = np.ones(1000, np.float32)
        values[300] = bad
        for spoiled in range(2):
            inputs = [values if worker == spoiled else 1 for worker in range(2)]
            for output in job.everywhere(lambda worker, inputs=inputs: buffers[worker].run(inputs[worker])):
                block = np.isnan(output)
                assert block[300] and block.sum() == BLOCK
                np.testing.assert_allclose(output[~block], 2, rtol=1e-6)
        for output in job.everywhere(lambda worker: buffers[worker].run(1)):
            np.testing.assert_allclose(output, 2, rtol=1e-6)


def test_bytes_of_dense_sums_are_about_a_quarter():
    moved = {}
    for quantized in (False, True):
        with hosts([1, 1], [1, 1]) as job:
            buffers = job.allreduce(1, 'float32', 400000, quantized=quantized)
            job.everywhere(lambda worker, buffers=buffers: buffers[worker].run(1))
            sent, _ = job.traffic(0)
            moved[quantized] = sent[CONTRIBUTION] + sent[RESULT]
    assert 0.25 < moved[True] / moved[False] < 0.258


@pytest.mark.parametrize('other', [{'dtype': 'float64'}, {'ends': [4, 10]}], ids=str)
def test_other_types_and_ranges_do_not_travel_as_int8(other):
    with hosts([1, 1], [1, 1]) as job:
        with pytest.raises(JobError, match='only sums of float32 without ranges of workers travel as int8'):
            job.allreduce(**{'number': 1, 'dtype': 'float32', 'count': 10, 'quantized': True, **other})
