"""Nets of MXNet's NumPy interface train as in one process: cases of ``train.py`` and of ``promises.py``."""
import pytest
from lab.jobs import run_job

from ...helpers import comparing
from ...helpers.joint_jobs import body, run_together
from ...helpers.turns import slow
from . import BODIES

CASES = {'train.py': ['dense', 'dense-on-store', 'dense-hybrid', 'contexts-dense'],
         'promises.py': ['clip/dense', 'back/dense/sgd-momentum', 'back/dense-on-store/sgd-momentum',
                         'restore/dense/sgd-momentum', 'restore/dense-on-store/sgd-momentum', 'anew/dense',
                         'head/dense/sgd-momentum', 'head/dense-on-store/sgd-momentum', 'calls/dense']}


def arguments_of(script, directory):
    return ['--numpy', '--directory', directory, '--cases', ','.join(CASES[script])]


@pytest.fixture(scope='module')
def expected(tmp_path_factory):
    """The results of MXNet alone, by script."""
    directory = tmp_path_factory.mktemp('alone')
    return {script: comparing.reference(BODIES / script, *arguments_of(script, directory)) for script in CASES}


@pytest.mark.parametrize('launcher, workers', [('horovodrun', 2), slow('launch.py', 3), ('none', 1)])
def test_equals_one_process(expected, launcher, workers, tmp_path):
    results = run_together({script: body(BODIES / script, *arguments_of(script, tmp_path)) for script in CASES},
                           launcher, workers=workers, timeout=120)
    for script, cases in CASES.items():
        comparing.assert_cases({case: expected[script][case] for case in cases}, results[script], workers)


def test_sparse_layers_are_refused_by_mxnet_itself_before_training(tmp_path):
    script = tmp_path / 'body.py'
    script.write_text("from mxnet.gluon import nn\nfrom mxnet import npx\nimport mxhybrid\nnpx.set_np()\n"
                    "nn.Embedding(10, 4, sparse_grad=True).initialize()\nprint('initialised')\n")
    result = run_job(script, 'none', timeout=60).failed('does not support stype = row_sparse')
    assert 'initialised' not in result.output
