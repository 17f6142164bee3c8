"""Nets of MXNet's NumPy interface train as in one process: every case of ``numpy_interface.py``."""
import pytest
from lab.jobs import run_job

from ...helpers import comparing
from ...helpers.turns import slow
from . import BODIES

BODY = BODIES / 'numpy_interface.py'


@pytest.fixture(scope='module')
def expected(tmp_path_factory):
    """MXNet alone."""
    return comparing.reference(BODY, '--directory', str(tmp_path_factory.mktemp('alone')))


@pytest.mark.parametrize('launcher, workers', [('horovodrun', 2), slow('launch.py', 3), ('none', None)])
def test_equals_one_process(expected, launcher, workers, tmp_path):
    result = run_job(BODY, launcher, workers=workers, args=['--directory', str(tmp_path)], timeout=120).ok()
    comparing.assert_cases(expected, result, workers or 1)


def test_sparse_layers_are_refused_by_mxnet_itself_before_training(tmp_path):
    body = tmp_path / 'body.py'
    body.write_text("from mxnet.gluon import nn\nfrom mxnet import npx\nimport mxhybrid\nnpx.set_np()\n"
                    "nn.Embedding(10, 4, sparse_grad=True).initialize()\nprint('initialised')\n")
    result = run_job(body, 'none', timeout=60).failed('does not support stype = row_sparse')
    assert 'initialised' not in result.output
