"""The end of a process in which a split network, its outputs and operators of the script are alive."""
import subprocess
import sys

import pytest

SCRIPT = '''
import sys

import mxnet as mx
from mxnet import autograd, gluon

import mxhybrid


class Own(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 1)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_data[0] - 1)


@mx.operator.register('own_operator')
class OwnProperties(mx.operator.CustomOpProp):
    def __init__(self):
        super().__init__(need_top_grad=False)

    def create_operator(self, ctx, shapes, dtypes):
        return Own()


class Net(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.dense = gluon.nn.Dense(6, in_units=5)

    def hybrid_forward(self, F, x):
        return F.Custom(self.dense(x), op_type='own_operator')


net = Net()
net.initialize()
net = mxhybrid.parallelize(net, mxhybrid.parallel.data_parallel(), (4, 5), recompute=RECOMPUTE)
trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': .1}, kvstore=mxhybrid.create())
for _ in range(2):
    with autograd.record():
        outputs = net(mx.nd.ones((4, 5)))
    outputs.backward()
    trainer.step(4)
mx.nd.waitall()
END
'''


@pytest.mark.parametrize('end, recompute, status', [
    ('', None, 0), ('net.cycle = [net, outputs]; sys.exit(3)', ['dense0'], 3),
    ('mxhybrid.kept = net, outputs; del net, outputs; raise ValueError', None, 1)])
def test_the_status_is_that_of_the_script(end, recompute, status):
    script = SCRIPT.replace('END', end).replace('RECOMPUTE', repr(recompute))
    ended = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True, timeout=120)
    assert ended.returncode == status and 'Segmentation' not in ended.stderr, ended.stderr
