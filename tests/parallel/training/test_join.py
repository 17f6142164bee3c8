"""Workers with different numbers of batches: a worker without batches takes part with zeros, until all have joined."""
import numpy as np
import pytest
from lab.jobs import run_job

from . import BODIES

BODY = BODIES / 'join.py'


def alone(workers, *cases):
    return run_job(BODY, 'none', workers=1, args=[workers, *cases], timeout=100).ok().results[0]


@pytest.fixture(scope='module')
def expected():
    """Return the results of one process, which trains on the joint batches of two workers."""
    return alone(2)


@pytest.fixture(scope='module')
def together():
    return run_job(BODY, 'horovodrun', workers=2, servers=2, args=[2], timeout=200).ok()


def assert_like_one_process(results, expected, waited, tolerance=2e-5):
    for rank, result in results.items():
        for case, (values, _) in expected.items():
            assert result[case][1] == waited[rank], case
            if case == 'stale':  # rows lag behind, but the workers agree
                for value, first in zip(result[case][0], results[0][case][0]):
                    np.testing.assert_array_equal(value, first, err_msg=case)
                continue
            for value, other in zip(result[case][0], values):
                np.testing.assert_allclose(value, other, rtol=tolerance, atol=tolerance, err_msg=case)


def test_weights_are_those_of_one_process(expected, together):
    assert len(expected) == 12
    assert_like_one_process(together.results, expected, {0: [1, 0, 2], 1: [0, 3, 0]})


def test_three_workers_of_mxnets_launcher(expected):
    cases = 'dense,on store,server weights,dynamic'
    result = run_job(BODY, 'launch.py', workers=3, servers=1, args=[3, cases], timeout=150).ok()
    assert_like_one_process(result.results, alone(3, cases), {0: [3, 0, 2], 1: [2, 3, 0], 2: [0, 3, 0]})


@pytest.mark.parametrize('variable, value, cases, tolerance', [
    ('DENSE_TRANSPORT', 'horovod', 'dense,on store,replicated', 2e-5),
    ('WIRE_DTYPE', 'float16', 'dense,server weights,dynamic', 3e-3),
    ('WIRE_DTYPE', 'int8', 'dense,dynamic', 3e-2)])
def test_other_transports_and_rounded_values(expected, variable, value, cases, tolerance):
    result = run_job(BODY, 'horovodrun', workers=2, servers=2, args=[2, cases], timeout=150,
                     env={'MXHYBRID_' + variable: value}).ok()
    assert_like_one_process(result.results, {case: expected[case] for case in cases.split(',')},
                            {0: [1, 0, 2], 1: [0, 3, 0]}, tolerance)


def test_refusals_name_the_reason(together):
    for result in together.results.values():
        split, other, waiting, by_hand = result['refusals']
        assert 'join: a network is split' in split and "last_batch='rollover'" in split
        assert "give it kvstore='hybrid'" in other
        assert 'has no values yet' in waiting
        assert 'worker 0 has joined, but worker 1 calls allreduce_grads()' in by_hand
