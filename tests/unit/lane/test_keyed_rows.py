"""Rows by key in the order of their use: distinct keys, sums, and calls for several tables."""
import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from mxhybrid.base.errors import JobError
from mxhybrid.lane.keyed_rows import KeyedRows, Segments, distinct_keys

from .hosts import JOBS, KEYS, SGD, hosts

LIMITS = [-2 ** 63, -2 ** 63 + 1, -2 ** 32, -257, -1, 0, 1, 255, 256, 2 ** 31, 2 ** 53 + 1, 2 ** 63 - 1]


#: Short lists are sorted by comparisons, and use the memory of long ones before them.
LONG_AND_SHORT_LISTS = [np.random.RandomState(0).choice(LIMITS, size).tolist()
                        for size in (1000, 3, 255, 256, 257, 0, 100)]


@example(LONG_AND_SHORT_LISTS)
@given(st.lists(st.lists(st.one_of(st.sampled_from(LIMITS), st.integers(-2 ** 63, 2 ** 63 - 1), st.integers(0, 300)),
                         max_size=60), max_size=4))
def test_distinct_keys_equal_those_of_numpy(lists):
    arrays = [np.array(ids, np.int64) for ids in lists]
    for ids, (keys, positions) in zip(arrays, distinct_keys(arrays)):
        expected_keys, expected_positions = np.unique(ids, return_inverse=True)
        np.testing.assert_array_equal(keys, expected_keys)
        np.testing.assert_array_equal(positions, expected_positions)


def test_distinct_keys_of_many_ids_of_any_shape():
    ids = np.random.RandomState(0).randint(-2 ** 40, 2 ** 40, (100, 30, 7)) // 5 * 5
    (keys, positions), = distinct_keys([ids[:, ::2]])
    assert keys.dtype == np.int64 and positions.dtype == np.int32
    np.testing.assert_array_equal(keys, np.unique(ids[:, ::2]))
    np.testing.assert_array_equal(keys[positions], ids[:, ::2].reshape(-1))


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_sums_are_added_in_order(dtype):
    keys, positions = np.arange(4), np.array([2, 0, 2, 2, 0], np.int32)
    rows = np.array([[1e8, 1], [3, 4], [1, 1], [-1e8, 1], [5, -4]], dtype)
    sums = KeyedRows(keys, positions, rows).sums()
    one, large = np.asarray(1, dtype), np.asarray(1e8, dtype)
    np.testing.assert_array_equal(sums, np.array([[8, 0], [0, 0], [large + one - large, 3], [0, 0]], dtype))
    np.testing.assert_array_equal(KeyedRows(np.arange(5), None, rows).sums(), rows)


def test_written_rows():
    rows = np.zeros((2, 2, 1))
    KeyedRows(np.arange(3), np.array([2, 0, 0, 1], np.int32), rows).write(np.array([[1.0], [2.0], [3.0]]))
    np.testing.assert_array_equal(rows[..., 0], [[3, 1], [1, 2]])


def draw_segments(random, num_positions, num_segments, dtype):
    """Return segments of which some are empty, with factors or without."""
    bounds = np.sort(np.append(random.randint(0, num_positions + 1, num_segments - 1), [0, num_positions]))
    factors = random.standard_normal(num_positions).astype(dtype) if random.randint(2) else None
    return Segments(bounds.astype(np.int64), factors)


def uses_of(part):
    """Return row, key number and factor of each position of rows with segments."""
    bounds, factors = part.segments
    rows = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    return zip(rows, part.positions, np.ones(len(rows), part.rows.dtype) if factors is None else factors)


def expected_rows(part, key_rows):
    """Return the rows that `part` gets from the rows of its keys."""
    if part.segments is None:
        return key_rows[part.positions]
    rows = np.zeros_like(part.rows)
    for row, key, factor in uses_of(part):
        rows[row] += factor * key_rows[key]
    return rows


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
@pytest.mark.parametrize('seed', range(6))
def test_segments(seed, dtype):
    random = np.random.RandomState(seed)
    num_keys, num_positions, width = 5, random.randint(1, 30), random.randint(1, 20)
    part = KeyedRows(np.arange(num_keys), random.randint(0, num_keys, num_positions).astype(np.int32),
                     random.standard_normal((8, width)).astype(dtype), draw_segments(random, num_positions, 8, dtype))
    sums = np.zeros((num_keys, width), dtype)
    for row, key, factor in uses_of(part):
        sums[key] += factor * part.rows[row]
    np.testing.assert_array_equal(part.sums(), sums)
    key_rows = random.standard_normal((num_keys, width)).astype(dtype)
    part.write(key_rows)
    np.testing.assert_array_equal(part.rows, expected_rows(part, key_rows))


@pytest.mark.parametrize('bounds', [[0, 2, 1, 3], [1, 1, 2, 3], [0, 1, 2, 2], [0, 1, 2, 4]])
def test_segments_that_do_not_divide_the_positions_are_refused(bounds):
    part = KeyedRows(np.arange(2), np.array([0, 1, 1], np.int32), np.zeros((3, 1)), Segments(np.array(bounds), None))
    for call in (part.sums, lambda: part.write(np.zeros((2, 1)))):
        with pytest.raises(JobError, match='the segments of 3 rows do not divide 3 positions'):
            call()


@pytest.mark.parametrize('rows, message', [
    (KeyedRows(np.arange(1), np.zeros(2, np.int32), np.zeros((1, 1), np.int64), Segments(np.array([0, 2]), None)),
     'rows with segments are float32 or float64'),
    (KeyedRows(np.arange(2), np.zeros(3, np.int32), np.zeros((2, 1))), '2 rows for 3 positions'),
    (KeyedRows(np.arange(2), np.array([0, 2], np.int32), np.zeros((2, 1))), 'a row belongs to none of 2 ids')],
    ids=['integers', 'few rows', 'no key'])
def test_sums_of_malformed_rows_are_refused(rows, message):
    with pytest.raises(JobError, match=message):
        rows.sums()


@pytest.mark.parametrize('halves', [False, True])
@pytest.mark.parametrize('workers, agents', JOBS)
def test_calls_for_several_tables_equal_calls_for_each(workers, agents, halves):
    """Tables 0 to 2 get calls for all of them, and tables 3 to 5 a call each, with the same ids.  The rows of tables 1
    and 2 have segments at times.
    """
    widths, steps, dtype = (1, 3, 4), 5, np.float32 if halves else np.float64
    with hosts(workers, agents) as job:
        for number in range(6):
            job.dynamic_table(number, widths[number % 3], job.owners(number % 3 + 1), dtype=dtype,
                              row_format=int(halves), first=('uniform', 0.5), seed=number % 3)
            job.rule(number, SGD, lr=0.5)

        def train(worker):
            random = np.random.RandomState(worker)
            for _ in range(steps):
                ids = [random.choice(KEYS, random.randint(0, 40)) for _ in widths]
                keyed = [KeyedRows(keys, positions, np.full((len(positions), width), np.nan, dtype))
                         for (keys, positions), width in zip(distinct_keys(ids), widths)]
                for number in (1, 2):
                    if random.randint(2):
                        keyed[number] = keyed[number]._replace(
                            rows=np.full((6, widths[number]), np.nan, dtype),
                            segments=draw_segments(random, len(keyed[number].positions), 6, dtype))
                job.deliver_tables(worker, range(3), keyed).wait()
                for number, part in enumerate(keyed):
                    rows = job.pull(worker, 3 + number, part.keys)
                    np.testing.assert_array_equal(part.rows, expected_rows(part, rows))
                gradients = [part._replace(rows=random.standard_normal(part.rows.shape).astype(dtype))
                             for part in keyed]
                assert job.push_tables(worker, range(3), gradients) == 3
                for number, part in enumerate(gradients):
                    assert job.push(worker, 3 + number, part.keys, part.sums())
            return [job.pull(worker, number, KEYS) for number in range(6)]
        for tables in job.everywhere(train):
            for together, apart in zip(tables[:3], tables[3:]):
                np.testing.assert_array_equal(together, apart)


def test_a_push_waits_for_deliveries_and_earlier_pushes():
    with hosts([2], [1]) as job:
        for number in range(2):
            job.dynamic_table(number, 1, [0])
            job.rule(number, SGD, lr=-1.0)
        keys, positions = np.array([5, 9]), np.array([1, 0, 1], np.int32)
        gradients = [KeyedRows(keys, positions, np.array([[1], [2], [4]], np.float32))] * 2
        assert job.push_tables(0, [0, 1], gradients) == 2
        # Worker 1 has not pushed, so neither the next push nor the rows can come.
        assert job.push_tables(0, [0, 1], gradients, 100) == 0
        assert job.push(1, 0, [5], [[10]])
        assert job.pull(0, 0, [5, 9]).tolist() == [[12], [5]]
        rows = [KeyedRows(keys, positions, np.zeros((3, 1), np.float32)) for _ in range(2)]
        completion = job.deliver_tables(0, [0, 1], rows)
        assert job.push_tables(0, [0, 1], gradients, 100) <= 1 and not completion.done.is_set()
        assert job.push(1, 1, [], [])
        completion.wait()
        assert rows[1].rows.tolist() == [[5], [2], [5]]


def test_calls_with_malformed_rows_do_nothing():
    with hosts([1], [1]) as job:
        for number in range(2):
            job.dynamic_table(number, 1, [0], max_batch_rows=3)
            job.rule(number, SGD, lr=-1.0)
        ones = np.ones((3, 1), np.float32)
        good = KeyedRows(np.arange(3), None, ones)
        for bad, message in [(KeyedRows(np.array([1, 1, 2]), None, ones), 'not sorted or not unique'),
                             (KeyedRows(np.arange(4), None, np.ones((4, 1), np.float32)), 'keys are too many'),
                             (KeyedRows(np.arange(2), None, ones), '3 rows for 2 ids'),
                             (KeyedRows(np.arange(2), np.array([0, 1, -1], np.int32), ones), 'none of 2 ids')]:
            for call in (job.push_tables, job.deliver_tables):
                with pytest.raises(JobError, match=message):
                    call(0, [0, 1], [good, bad])
        with pytest.raises(JobError, match='no table has number 7'):
            job.push_tables(0, [0, 7], [good, good])
        assert not job.pull(0, 0, [0, 1, 2]).any()
        assert job.push_tables(0, [0, 1], [good, good]) == 2
        assert job.pull(0, 0, [0, 1, 2]).tolist() == [[1], [1], [1]]
