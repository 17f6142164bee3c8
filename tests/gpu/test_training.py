"""Training on GPUs equals MXNet on one GPU in one process, for cases of ``tests/parallel/training/bodies/train.py``."""
import functools
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

LANE = {'MXHYBRID_DENSE_TRANSPORT': 'lane'}
#: Launcher, workers, environment.
JOBS = [('none', 1, {}), ('horovodrun', 2, LANE), ('launch.py', 3, LANE),
        ('horovodrun', 2, dict(LANE, MXHYBRID_ROUTES='allreduce'))]
if GPUS > 1 or not hvd.nccl_built():  # NCCL takes one worker for each GPU
    JOBS += [('horovodrun', 2, {}), ('horovodrun', 2, {'MXHYBRID_ROW_TRANSPORT': 'ps-lite'}),
             ('horovodrun', 2, {'MXHYBRID_WIRE_DTYPE': 'float32', 'MXHYBRID_ON_DEMAND_ROWS': '0'})]

SMALL = ['--gpus', '--epochs', '1', '--max-tokens', '60000', '--vocab', '4000', '--samples', '256', '--embed', '48',
         '--hidden', '48']


@functools.lru_cache(maxsize=None)
def reference(case):
    """Return the results of MXNet alone."""
    return {case: comparing.reference(BODY, '--device', 'gpu', '--cases', case)[case]}


@pytest.mark.timeout(900)
@pytest.mark.parametrize('launcher, workers, env', JOBS)
@pytest.mark.parametrize('case', CASES)
def test_equals_one_process(case, launcher, workers, env):
    result = run_job(BODY, launcher, workers=workers, args=['--device', 'gpu', '--cases', case], env=env,
                     timeout=600).ok()
    comparing.assert_cases(reference(case), result, workers)


@pytest.mark.timeout(1800)
def test_the_language_model_has_the_perplexity_of_one_process():
    def perplexity(launcher, workers, *args):
        result = run_job(REPOSITORY / 'examples' / 'word_lm.py', launcher, workers=workers, args=SMALL + list(args),
                         env=LANE, timeout=800).ok()
        return float(re.findall(r'final test perplexity ([\d.]+)', result.output)[0])

    assert perplexity('horovodrun', 2) == pytest.approx(perplexity('none', 1, '--kvstore', 'device'), rel=1e-2)
