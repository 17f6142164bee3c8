"""Convolutions, whose arrays oneDNN keeps in layouts of its own, equal one process on the joined batch."""
import numpy as np
import pytest
from lab.jobs import run_job

from . import BODIES

BODY = BODIES / 'convolutions.py'


@pytest.mark.parametrize('updates', ['store', 'worker'])
def test_equals_one_process(updates):
    expected = run_job(BODY, 'none', args=[2, updates]).ok().results[0]['weights']
    result = run_job(BODY, 'horovodrun', workers=2, args=[0, updates]).ok()
    for rank in range(2):
        found = result.results[rank]['weights']
        assert list(found) == list(expected)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
            np.testing.assert_array_equal(found[name], result.results[0]['weights'][name])
