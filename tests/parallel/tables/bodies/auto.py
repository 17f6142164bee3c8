"""Train a small model whose tables' partition counts are found on the way; report weights, counts and the file."""
import json
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon

import mxhybrid
from tests.helpers.training_steps import weights_of

BATCH = 192
#: Steps in which the search of both tables ends, also if the times of steps vary and counts are measured again.
STEPS = 120


class Net(gluon.Block):
    """Tables of all three uses, one of which moves next to nothing, below enough work for steps to take a while."""

    def __init__(self, rows):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.words = gluon.contrib.nn.SparseEmbedding(rows, 16, prefix='words_')
            self.bins = gluon.nn.Embedding(rows // 2, 8, sparse_grad=True, prefix='bins_')
            self.days = gluon.nn.Embedding(7, 2, sparse_grad=True, prefix='days_')
            self.hidden = gluon.nn.Dense(600, in_units=26, prefix='hidden_', activation='tanh')
            self.more = gluon.nn.Dense(600, in_units=600, prefix='more_', activation='tanh')
            self.score = gluon.nn.Dense(1, in_units=600, prefix='score_')

    def forward(self, ids):
        tables = ((self.words, 3000), (self.bins, 1000), (self.days, 7))
        parts = [table(ids % rows).mean(axis=1) for table, rows in tables]
        return self.score(self.more(self.hidden(mx.nd.concat(*parts, dim=1))))


def train(steps, **settings):
    """Return the counts after the first and the last step, and the weights."""
    store = mxhybrid.create(**settings)
    net = Net(4000)
    mx.random.seed(3)
    net.initialize(mx.init.Uniform(0.1))
    trainer = gluon.Trainer(net.collect_params(), 'adam', {'learning_rate': 0.01}, kvstore=store)
    loss_of = gluon.loss.L2Loss()
    random = np.random.RandomState(1)
    counts = []
    for _ in range(steps):
        ids = random.randint(0, 4000, (BATCH, 6))
        share = ids[store.rank::store.num_workers]
        with autograd.record():
            loss = loss_of(net(mx.nd.array(share)), mx.nd.array(share.mean(axis=1) / 4000))
        loss.backward()
        trainer.step(BATCH)
        counts.append({route.name: route.partitioning.count for route in store.backend.routes.values()
                       if route.partitioning})
    return {'first': counts[0], 'last': counts[-1], 'weights': weights_of(net)}


def change(content):
    """Put other content into the file."""
    if store.rank == 0:
        path.write_text(json.dumps(content))
    store._barrier()


path = Path(sys.argv[1])
store = mxhybrid.create()
searched = train(STEPS, partitions='auto', partition_file=str(path))
store._barrier()
content = json.loads(path.read_text())
report(store.rank, outcomes=searched, content=content, fixed=train(STEPS, partitions=2))
# The next run starts from the result of this one, which is made certain here.
for name, count in (('net_words_weight', 6), ('net_bins_weight', 5)):
    content['tables'][name].update(partitions=count, finished=True)
change(content)
report(store.rank, again=train(12, partitions='*days*=3,*=auto', partition_file=str(path)))
# One for another job is left alone.
change(dict(content, workers=3))
report(store.rank, other=train(2, partitions='auto', partition_file=str(path)))
train(1, partitions=2, partition_file=str(path))
