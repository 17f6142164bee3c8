"""A worker without a part in any redistribution of a network has the other workers' numbers for those of the next."""
import numpy as np
from lab.jobs import run_job

from . import BODIES


def test_redistributions_have_the_same_numbers_on_all_workers():
    results = run_job(BODIES / 'idle_worker.py', 'horovodrun', workers=3, timeout=60).ok().results
    assert [results[rank]['takes_part'] for rank in range(3)] == [True, True, False]
    assert len({results[rank]['number'] for rank in range(3)}) == 1
    for rank in range(3):
        assert results[rank]['redistributions'] > 0
        np.testing.assert_array_equal(results[rank]['gradients'], np.full(4, 2.0))
        np.testing.assert_array_equal(results[rank]['output'], np.full((1, 6), 2.0))
