"""The end of a process in which a split network, its outputs and operators of the script are alive."""
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
SCRIPT = '''
import sys

import mxnet as mx
from mxnet import gluon

import mxhybrid
from tests.helpers.custom_operators import register
from tests.helpers.gluon_nets import Net, backward, initialised, trainer_of

register('own_operator', False, 1, 1)
net = initialised(Net(lambda: [gluon.nn.Dense(6, in_units=5)],
                      lambda F, x, dense: F.Custom(dense(x), op_type='own_operator')))
net = mxhybrid.parallelize(net, mxhybrid.parallel.data_parallel(), (4, 5), recompute=RECOMPUTE)
trainer = trainer_of(net, kvstore=mxhybrid.create())
for _ in range(2):
    outputs = backward(lambda: net(mx.nd.ones((4, 5))))
    trainer.step(4)
mx.nd.waitall()
END
'''


@pytest.mark.parametrize('end, recompute, status', [
    ('', None, 0), ('net.cycle = [net, outputs]; sys.exit(3)', ['dense0'], 3),
    ('mxhybrid.kept = net, outputs; del net, outputs; raise ValueError', None, 1)])
def test_the_status_is_that_of_the_script(end, recompute, status):
    script = SCRIPT.replace('END', end).replace('RECOMPUTE', repr(recompute))
    ended = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert ended.returncode == status and 'Segmentation' not in ended.stderr, ended.stderr
