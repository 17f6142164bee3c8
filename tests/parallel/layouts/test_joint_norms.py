"""BatchNorms over several workers have the statistics, gradients and running averages of one process."""
import pytest
from lab.jobs import run_job

from . import BODIES

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope='module')
def results():
    return run_job(BODIES / 'joint_norms.py', 'horovodrun', workers=3, timeout=200).ok().results


def test_equals_one_process_however_it_is_split(results):
    for rank in range(3):
        for name, (outputs, values) in results[rank]['apart'].items():
            assert max(outputs, values) < (1e-10 if 'float64' in name else 1e-5), (rank, name, outputs, values)


def test_workers_without_a_part_update_their_averages(results):
    for rank in range(3):
        in_float64, in_float32 = results[rank]['after_a_small_batch']
        assert in_float64 < 1e-10 and in_float32 < 1e-5, (rank, in_float64, in_float32)


def test_compiled_operators_are_those_of_joint_statistics_in_float32(results):
    for rank in range(3):
        counts = results[rank]['operators']
        assert all(counts[case + ', float32'] for case in ('samples', 'height', 'another axis', 'dense', 'shared',
                                                                  'pooled', 'pooled, height'))
        assert not any(count for case, count in counts.items() if 'float64' in case or 'channels' in case)


def test_calls_whose_channels_are_split_differently_are_refused(results):
    for rank in range(3):
        assert 'split the channels of all its calls alike' in results[rank]['refused'], results[rank]['refused']
