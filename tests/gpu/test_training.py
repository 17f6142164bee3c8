"""Training on GPUs equals MXNet on one GPU in one process, for cases of ``tests/parallel/training/bodies/train.py``."""
import re

import horovod.mxnet as hvd
import mxnet as mx
import pytest
from lab.jobs import run_job
from lab.launchers import REPOSITORY

from ..helpers import comparing
from ..parallel.training import BODIES

BODY = BODIES / 'train.py'
GPUS = mx.context.num_gpus()

CASES = ['dense', 'dense-on-store', 'dense-momentum', 'half', 'shared', 'trainers', 'widths', 'add', 'add-on-store',
         'weight-sgd', 'weight-sgd-momentum', 'weight-adam', 'weight-adagrad', 'gradient-sgd-momentum', 'gradient-adam',
         'gradient-adagrad', 'gradient-on-store', 'gradient-hybrid', 'gradient-static', 'stale-gradient', 'stale-dense',
         'frozen-weight', 'frozen-gradient', 'changing-sgd', 'contexts-dense', 'contexts-dense-on-store',
         'contexts-gradient']
if GPUS < 2:
    CASES = [case for case in CASES if not case.startswith('contexts')]

#: Launcher, workers, environment.
JOBS = [('none', 1, {}), ('horovodrun', 2, {'MXHYBRID_DENSE_TRANSPORT': 'lane'}),
        ('launch.py', 3, {'MXHYBRID_DENSE_TRANSPORT': 'lane'}),
        ('horovodrun', 2, {'MXHYBRID_ROUTES': 'allreduce', 'MXHYBRID_DENSE_TRANSPORT': 'lane'})]
if GPUS > 1 or not hvd.nccl_built():  # NCCL takes one worker for each GPU
    JOBS += [('horovodrun', 2, {}), ('horovodrun', 2, {'MXHYBRID_ROW_TRANSPORT': 'ps-lite'}),
             ('horovodrun', 2, {'MXHYBRID_WIRE_DTYPE': 'float32', 'MXHYBRID_ON_DEMAND_ROWS': '0'})]

SMALL = ['--gpus', '--epochs', '1', '--max-tokens', '60000', '--vocab', '4000', '--samples', '256', '--embed', '48',
         '--hidden', '48']


@pytest.fixture(scope='module')
def references():
    """MXNet alone, by case; each is computed when it is first asked for."""
    return {}


@pytest.mark.timeout(900)
@pytest.mark.parametrize('launcher, workers, env', JOBS)
@pytest.mark.parametrize('case', CASES)
def test_equals_one_process(references, case, launcher, workers, env):
    if case not in references:
        references[case] = comparing.reference(BODY, '--device', 'gpu', '--cases', case)[case]
    result = run_job(BODY, launcher, workers=workers, args=['--device', 'gpu', '--cases', case], env=env,
                     timeout=600).ok()
    comparing.assert_cases({case: references[case]}, result, workers)


@pytest.mark.timeout(1800)
def test_the_language_model_has_the_perplexity_of_one_process():
    def perplexity(launcher, workers, *args):
        result = run_job(REPOSITORY / 'examples' / 'word_lm.py', launcher, workers=workers, args=SMALL + list(args),
                         env={'MXHYBRID_DENSE_TRANSPORT': 'lane'}, timeout=800).ok()
        return float(re.findall(r'final test perplexity ([\d.]+)', result.output)[0])

    assert perplexity('horovodrun', 2) == pytest.approx(perplexity('none', 1, '--kvstore', 'device'), rel=1e-2)
