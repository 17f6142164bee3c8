"""Make the calls of scripts and libraries that were written for one process or for Horovod.

``client_scripts.py FOLDER [--first] [--twice]`` writes checkpoints of gluon's estimator to a new folder.
The script ends with ``hvd.shutdown()``, and training is reported before.
"""
import os
import sys
import urllib.request

import horovod.mxnet as hvd
import mxnet as mx
from lab.reports import report
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib.estimator import CheckpointHandler, Estimator

import mxhybrid
from tests.helpers.outcomes import error_of
from tests.helpers.training_steps import backward, sum_of_squares

BATCH = 4


def network(prefix, **keywords):
    """A layer, the same in every process."""
    net = nn.Dense(1, in_units=2, prefix=prefix, **keywords)
    net.initialize(mx.init.Constant(0.5))
    return net


def backward_of_share(net, rank, size):
    """Compute the gradients of this worker's share of a batch."""
    backward(net, mx.nd.array([[1, 2], [3, 4], [5, 6], [7, 8]])[rank::size], loss_of=sum_of_squares)


def train(net, trainer, rank, size, batch_size=BATCH):
    """Make two steps, and return the weight."""
    for _ in range(2):
        backward_of_share(net, rank, size)
        trainer.step(batch_size)
    return net.weight.data().asnumpy()


def library(params, **keywords):
    """Train like a library whose users cannot choose the store of its Trainer."""
    return gluon.Trainer(params, 'sgd', {'learning_rate': 0.01}, **keywords)


def libraries(rank, size):
    """Return weights by the argument that a library gives to its Trainer, and the stores of these Trainers."""
    weights_of, stores = {}, {}
    for name, keywords in {'device': {'kvstore': 'device'}, 'local': {'kvstore': 'local'}, 'none': {'kvstore': None},
                           'nothing': {}, 'object': {'kvstore': mx.kv.create('local')}}.items():
        net = network(name + '_')
        trainer = library(net.collect_params(), **keywords)
        weights_of[name] = train(net, trainer, rank, size)
        stores[name] = getattr(trainer._kvstore, 'type', None)
    return weights_of, stores


def horovod(rank, size):
    """Weights and store of Horovod's own Trainer, which averages over workers."""
    net = network('horovod_')
    trainer = hvd.DistributedTrainer(net.collect_params(), 'sgd', {'learning_rate': 0.01})
    return train(net, trainer, rank, size, BATCH // size), trainer._kvstore is None


def local_updates(rank, size):
    """Weights after an update without an exchange, and after clipping between exchange and update."""
    weights = []
    for clips in (False, True):
        net = network('clips_' if clips else 'local_')
        trainer = library(net.collect_params(), kvstore='hybrid')
        for _ in range(2):
            backward_of_share(net, rank, size)
            if clips:
                trainer.allreduce_grads()
                gluon.utils.clip_global_norm([param.grad() for param in net.collect_params().values()], 10.0)
            trainer.update(BATCH)
        weights.append(net.weight.data().asnumpy())
    return weights


class Counted(nn.HybridSequential):
    """A network that counts its files."""

    files = 0

    def save_parameters(self, *args, **keywords):
        type(self).files += 1
        super().save_parameters(*args, **keywords)


def estimator(rank, size, folder):
    """Checkpoints of gluon's estimator on all workers: their files, the number that this one wrote, and the weights.

    A second estimator resumes.
    """
    for epochs in (6, 12):
        net = Counted(prefix='estimated_')
        net.add(nn.Dense(1, in_units=2))
        net.initialize(mx.init.Constant(0.5))
        net.hybridize()
        trainer = gluon.Trainer(net.collect_params(), 'adam', {'learning_rate': 0.01}, kvstore='hybrid')
        data = gluon.data.ArrayDataset(mx.nd.array([[1, 2], [3, 4]])[rank:rank + 1], mx.nd.ones(1))
        job = Estimator(net, gluon.loss.L2Loss(), trainer=trainer, context=mx.cpu())
        saver = CheckpointHandler(folder, monitor=job.train_metrics[-1], save_best=True, mode='min', max_checkpoints=1,
                                  resume_from_checkpoint=epochs == 12)
        job.fit(gluon.data.DataLoader(data, batch_size=1), epochs=epochs, event_handlers=saver)
    return sorted(os.listdir(folder)), Counted.files, net[0].weight.data().asnumpy()


def shared_store(rank, size):
    """Return the error of a second Trainer with the store of the first, which trains on."""
    store = mxhybrid.create()
    first, second = network('first_'), network('second_')
    trainers = [library(net.collect_params(), kvstore=store) for net in (first, second)]
    weight = train(first, trainers[0], rank, size)
    backward_of_share(second, rank, size)
    text = error_of(trainers[1].step, BATCH)
    return text, weight, train(first, trainers[0], rank, size), (first, trainers[0])


def note_rendezvous(start):
    """Wrap `start`, which is Horovod's: note in `met_at` where the workers meet, and the record of a worker there."""
    def start_and_note(*args, **keywords):
        met_at.update(port=os.environ['HOROVOD_GLOO_RENDEZVOUS_PORT'])
        start(*args, **keywords)
        url = 'http://%s:%s/global/1' % (os.environ['HOROVOD_GLOO_RENDEZVOUS_ADDR'], met_at['port'])
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        met_at.update(record=len(opener.open(url, timeout=30).read()))
    return start_and_note


met_at, launchers_port = {}, os.environ.get('HOROVOD_GLOO_RENDEZVOUS_PORT')
if '--first' in sys.argv:
    hvd.init()
elif launchers_port is None:
    mxhybrid.create()
else:
    start = hvd.init
    hvd.init = note_rendezvous(start)
    mxhybrid.create()
    hvd.init = start
hvd.init()
rank, size = hvd.rank(), hvd.size()
found, stores = libraries(rank, size)
values = dict(found, **dict(zip(('horovod', 'horovod alone'), horovod(rank, size))))
values['local'], values['clipped'] = local_updates(rank, size)
text, values['first'], values['first again'], kept = shared_store(rank, size)
files, written, values['estimated'] = estimator(rank, size, sys.argv[1])
report(rank, files=files, written=written, stores=stores, shared=text, met_at=met_at, launchers_port=launchers_port,
       process_set=error_of(hvd.add_process_set, [0]) if 'DMLC_ROLE' in os.environ else '', **values)
hvd.shutdown()
if '--twice' in sys.argv:
    train(*kept, rank, size)  # sums are the lane's
    hvd.shutdown()
    print('second start: %s' % (error_of(hvd.init) or '%d workers' % hvd.size()), flush=True)
