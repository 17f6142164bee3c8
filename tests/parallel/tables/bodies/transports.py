"""Train a small table, and report the link of its rows.

With ``--without RANK`` that worker has no compiled part; with ``--elsewhere`` all workers except one share memory with
no process; with ``--other-user`` they seem to be processes of another user.
"""
import argparse
import os

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import gluon
from mxnet.gluon.contrib.nn import SparseEmbedding

import mxhybrid
from mxhybrid.job import horovodrun, launch_py
from mxhybrid.job.join import current
from mxhybrid.kernels import library as kernels_library
from mxhybrid.lane import library
from tests.helpers.training_steps import make_step

parser = argparse.ArgumentParser()
parser.add_argument('--without', type=int)
parser.add_argument('--elsewhere', action='store_true')
parser.add_argument('--other-user', action='store_true')
options = parser.parse_args()


def missing():
    """Fail as on a host without a compiler."""
    raise OSError('the compiled part of mxhybrid is missing: install g++ and then mxhybrid again')


if options.without is not None and int(os.environ['HOROVOD_RANK']) == options.without:
    library.load = kernels_library.load = missing
if options.elsewhere and os.environ.get('HOROVOD_RANK', str(os.getpid())) != '0':
    horovodrun.memory_domain = launch_py.memory_domain = lambda: 'elsewhere %d' % os.getpid()
if options.other_user and os.environ.get('HOROVOD_RANK', os.environ.get('DMLC_TASK_ID')) != '0':
    user = os.getuid()
    os.getuid = lambda: user + 1
store = mxhybrid.create()
net = SparseEmbedding(20, 3)
net.initialize(mx.init.Constant(1.0))
trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 1.0}, kvstore=store)
for _ in range(3):
    make_step(trainer, 1, net, mx.nd.array([store.rank, 5]))
rows = net.weight.row_sparse_data(mx.nd.arange(20)).data.asnumpy()
expected = np.ones((20, 3), np.float32)
expected[:store.num_workers] -= 3
expected[5] -= 3 * store.num_workers
np.testing.assert_array_equal(rows, expected)
report(store.rank, link=type(current().servers.link).__name__)
