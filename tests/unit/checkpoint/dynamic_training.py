"""A small training in one process whose net has dynamic tables."""
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import mxhybrid

WIDTH, STEPS = 3, 9
BIG = 2 ** 40


class Net(gluon.Block):
    """Numbered rows, rows by key, and a dense layer."""

    def __init__(self, width=WIDTH, rows=BIG, dense=True, **options):
        super().__init__()
        with self.name_scope():
            self.items = mxhybrid.nn.Embedding(rows, width, weight_initializer=mx.init.Uniform(0.3))
            self.users = mxhybrid.nn.HashEmbedding(width, weight_initializer=mx.init.Normal(0.3), **options)
            self.output = gluon.nn.Dense(1, in_units=width) if dense else None

    def forward(self, ids):
        rows = self.items(ids) + self.users(ids * 7 - 5)
        return rows if self.output is None else self.output(rows)


class Training:
    def __init__(self, optimizer='adam', seed=1, settings=(), dtype='float32', on_store=None, **options):
        mx.random.seed(seed)
        self.net = Net(**options)
        self.net.cast(dtype)
        self.dtype = dtype
        self.net.initialize(mx.init.Uniform(0.3))
        self.trainer = gluon.Trainer(self.net.collect_params(), optimizer,
                                     dict({'learning_rate': 0.1}, **dict(settings)), kvstore='hybrid',
                                     update_on_kvstore=on_store)

    def fit(self, begin, end, most=40):
        """Train; returns the losses."""
        losses = []
        for step in range(begin, end):
            ids = np.random.RandomState(step).randint(0, most, 8) * (BIG // 50)
            with autograd.record():
                loss = ((self.net(ids) - 1) ** 2).mean()
            loss.backward()
            self.trainer.step(1)
            losses.append(float(loss.asscalar()))
        return losses

    def save(self, directory, step, **keywords):
        return mxhybrid.checkpoint.save(directory, self.net, self.trainer, step, **keywords)

    def fit_and_save(self, directory, begin, end, most=40, **keywords):
        self.fit(begin, end, most)
        return self.save(directory, end, **keywords)

    def load(self, directory):
        return mxhybrid.checkpoint.load(directory, self.net, self.trainer)

    def rows(self):
        """Return the number of rows by key."""
        return self.net.users.weight.table.statistics()['rows']
