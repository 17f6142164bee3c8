"""Rules find the samples of outputs where all dimensions are equally long: a worker gets its own samples, or all."""
import pytest
from lab.jobs import run_job

from ...helpers.sampled_networks import CALLS
from . import BODIES


@pytest.fixture(scope='module', params=[2, 3], ids='{} workers'.format)
def sampled(request):
    """The report of every worker, and the output of the job."""
    result = run_job(BODIES / 'sampled.py', 'horovodrun', workers=request.param, timeout=280).ok()
    return [result.results[rank] for rank in range(request.param)], result.output


def test_outputs_and_gradients_are_those_of_one_process(sampled):
    for one in sampled[0]:
        assert one['cases'] == len(CALLS)
        assert one['problems'] == {}


def test_operators_of_the_joint_batch_are_reported(sampled):
    (first, *others), output = sampled
    count, reports = 1 + len(others), first['reports']
    table = reports['no rule (0,)'].split('\n')
    whole = 'whole on every worker, %d times the work of a shard each, from inputs of ' % count
    lost = 'its samples are not known after diag0, as there is no rule for diag'
    assert 'diag0: %s512 B: there is no rule for diag' % whole in table
    assert '_mulscalar0: %s128 B: %s' % (whole, lost) in table
    assert 'output 0 (_mulscalar0): whole on every worker: ' + lost in table
    assert any(line.startswith('output 0 (concat0): all samples 2 times in a row; each worker returns its own')
               for line in reports['concat and split (0, 0)'].split('\n'))
    assert 'which mixes them' in reports['reverse (1,)']
    warning = ('parallelize: operators without a rule are computed for the joint batch of %d workers, and so are the '
               'operators after them until samples are known again: diag0 (diag);' % count)
    assert output.count(warning) == 1
