"""Tables that count pushes, so that a pulled row shows which pushes it lacks.

Worker w adds 1 to column w of the rows that it pushes, so a row has the number of pushes of each worker to it.
"""
import numpy as np


def counts_by_step(num_workers, steps, num_rows, pushed_ids):
    """Return the rows after each number of steps, of shape (steps + 1, num_rows, num_workers).

    ``pushed_ids(worker, step)`` are the distinct ids of the rows that a worker pushes in a step.
    """
    counts = np.zeros((steps + 1, num_rows, num_workers))
    for step in range(steps):
        counts[step + 1] = counts[step]
        for worker in range(num_workers):
            counts[step + 1, pushed_ids(worker, step), worker] += 1
    return counts


def check_rows(rows, ids, worker, pushes, staleness, counts, tolerance=0.0):
    """Require that each row is as after a number of pushes of all workers that the staleness allows, and has all pushes
    of the worker.

    Counts may differ by `tolerance`.  Return the largest number of missing pushes that is certain.
    """
    largest = 0
    for row_id, row in zip(ids, rows):
        lags = [lag for lag in range(min(staleness, pushes) + 1)
                if np.abs(counts[pushes - lag, row_id] - row).max() <= tolerance]
        assert lags, (row_id, row, counts[:pushes + 1, row_id])
        assert abs(row[worker] - counts[pushes, row_id, worker]) <= tolerance
        largest = max(largest, min(lags))
    return largest
