"""Arrays of other kinds than usual: those that oneDNN keeps in layouts of its own, those of a script that works
``with mx.gpu():`` while everything is on the CPU, and those of MXNet's NumPy interface.
"""
import pytest
from lab.jobs import run_job

from ...helpers import comparing
from ...helpers.joint_jobs import body, run_together
from ...helpers.turns import slow
from . import BODIES

CONVOLUTIONS, SCOPE = BODIES / 'convolutions.py', BODIES / 'another_scope.py'


@pytest.fixture(scope='module')
def alone():
    """The results of one process with the joint batch."""
    return run_together({updates: body(CONVOLUTIONS, 2, updates) for updates in ('store', 'worker')}, 'none')


@pytest.fixture(scope='module')
def together(tmp_path_factory):
    """The results of two workers."""
    return run_together({
        'store': body(CONVOLUTIONS, 0, 'store'), 'worker': body(CONVOLUTIONS, 0, 'worker'),
        'worker, sharded': body(CONVOLUTIONS, 0, 'worker', MXHYBRID_SHARD_UPDATES=1),
        'scope': body(SCOPE, tmp_path_factory.mktemp('scope')),
        'scope, allreduce': body(SCOPE, tmp_path_factory.mktemp('allreduce'), MXHYBRID_ROUTES='allreduce')},
        'horovodrun', workers=2, timeout=150)


@pytest.mark.parametrize('updates', ['store', 'worker', 'worker, sharded'])
def test_convolutions_equal_one_process(alone, together, updates):
    comparing.assert_cases(alone[updates.partition(',')[0]].results[0], together[updates], 2)


@pytest.mark.parametrize('job', ['scope', 'scope, allreduce', 'launch.py'])
def test_arrays_of_mxhybrid_are_always_on_the_host(request, tmp_path, job):
    if job == 'launch.py':
        result = run_job(SCOPE, job, workers=2, timeout=90, args=[tmp_path],
                         env={'MXHYBRID_ROW_TRANSPORT': 'ps-lite'}).ok()
    else:
        result = request.getfixturevalue('together')[job]
    for rank in range(2):
        errors = result.results[rank]['errors']
        assert len(errors) == 2 and max(errors.values()) < 1e-5, errors


#: Cases with the NumPy interface, by script.
NUMPY_CASES = {
    'train.py': ['dense', 'dense-on-store', 'dense-hybrid', 'contexts-dense'],
    'promises.py': ['clip/dense', 'back/dense/sgd-momentum', 'back/dense-on-store/sgd-momentum',
                    'restore/dense/sgd-momentum', 'restore/dense-on-store/sgd-momentum', 'anew/dense',
                    'head/dense/sgd-momentum', 'head/dense-on-store/sgd-momentum', 'calls/dense']}


def numpy_arguments(script, directory):
    return ['--numpy', '--directory', directory, '--cases', ','.join(NUMPY_CASES[script])]


@pytest.fixture(scope='module')
def numpy_alone(tmp_path_factory):
    """The results of MXNet alone, by script."""
    directory = tmp_path_factory.mktemp('alone')
    return {script: comparing.reference(BODIES / script, *numpy_arguments(script, directory)) for script in NUMPY_CASES}


@pytest.mark.parametrize('launcher, workers', [('horovodrun', 2), slow('launch.py', 3), ('none', 1)])
def test_the_numpy_interface_equals_one_process(numpy_alone, launcher, workers, tmp_path):
    bodies = {script: body(BODIES / script, *numpy_arguments(script, tmp_path)) for script in NUMPY_CASES}
    results = run_together(bodies, launcher, workers=workers, timeout=120)
    for script, cases in NUMPY_CASES.items():
        comparing.assert_cases({case: numpy_alone[script][case] for case in cases}, results[script], workers)


def test_sparse_layers_are_refused_by_mxnet_itself_before_training(tmp_path):
    script = tmp_path / 'body.py'
    script.write_text("from mxnet.gluon import nn\nfrom mxnet import npx\nimport mxhybrid\nnpx.set_np()\n"
                      "nn.Embedding(10, 4, sparse_grad=True).initialize()\nprint('initialised')\n")
    result = run_job(script, 'none', timeout=60).failed('does not support stype = row_sparse')
    assert 'initialised' not in result.output
