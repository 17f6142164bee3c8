"""Run programs with dynamic tables, of a file; report the values of each."""
import json
import sys

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import mxhybrid
from lab.fuzz.tables.drawing import MOST_IDS
from lab.reports import report

WIDTH = 3


class Net(gluon.Block):
    """Tables, features of a sample that look their rows up, and a dense layer on the sums of the rows."""

    def __init__(self, program):
        super().__init__(prefix='net_')
        self.features, dtype = program['features'], program['dtype']
        self.tables = []
        with self.name_scope():
            for number, table in enumerate(program['tables']):
                name, value = table['initializer']
                block = make_table(table, dtype, getattr(mx.init, name)(value), 'table%d_' % number)
                self.register_child(block)
                self.tables.append(block)
            dynamic = {str(number): self.tables[feature['table']] for number, feature in enumerate(self.features)
                       if program['tables'][feature['table']]['kind'] != 'sparse'}
            self.collection = (mxhybrid.nn.EmbeddingCollection(dynamic, prefix='all_')
                               if program['collection'] and dynamic else None)
            self.out = gluon.nn.Dense(1, use_bias=False, in_units=WIDTH, prefix='out_')
            self.out.cast(dtype)

    def forward(self, arguments):
        """Return a prediction for each sample; `arguments` are those of each feature."""
        rows = {}
        if self.collection is not None:
            rows = self.collection({name: arguments[int(name)] for name in self.collection._tables})
        total = 0
        for number, feature in enumerate(self.features):
            given = arguments[number]
            if str(number) not in rows:
                table = self.tables[feature['table']]
                is_sparse = isinstance(table, gluon.nn.Embedding)
                rows[str(number)] = table(mx.nd.array(given['ids'], dtype='int64')) if is_sparse else table(**given)
            total = total + rows[str(number)]
        return self.out(total)


def make_table(table, dtype, initializer, prefix):
    if table['kind'] == 'sparse':
        return gluon.nn.Embedding(table['count'], WIDTH, dtype, mx.init.Constant(0.2), True, prefix=prefix)
    if table['kind'] == 'rows':
        return mxhybrid.nn.Embedding(1 << 40, WIDTH, dtype, initializer, prefix=prefix)
    return mxhybrid.nn.HashEmbedding(WIDTH, dtype, initializer, prefix=prefix, **table['options'])


def ids_of(program, feature, random, samples):
    """Return ids of each sample: lists, of one id where the feature has no bags."""
    table = program['tables'][feature['table']]
    factor = {'sparse': 1, 'rows': (1 << 40) // 512, 'keys': 1 << 53}[table['kind']]
    has_bags = feature['combine'] is not None and table['kind'] != 'sparse'
    counts = random.randint(0, MOST_IDS + 1, samples) if has_bags else np.ones(samples, int)
    return [(random.randint(0, table['count'], count) * factor - (1 if table['kind'] == 'keys' else 0))
            for count in counts]


def arguments_of(program, feature, ids, weights):
    """Return the arguments of a Block for the samples with these ids and weights."""
    if feature['combine'] is None or program['tables'][feature['table']]['kind'] == 'sparse':
        return {'ids': np.concatenate(ids)}
    arguments = {'combine': feature['combine']}
    if feature['by_offsets']:
        arguments['ids'] = np.concatenate(ids + [np.empty(0, np.int64)])
        arguments['offsets'] = np.cumsum([0] + [len(bag) for bag in ids])[:-1]
    else:
        arguments['padding'] = 7  # no id of a table by keys or by large numbers
        arguments['ids'] = np.array([list(bag) + [7] * (MOST_IDS - len(bag)) for bag in ids], np.int64)
        weights = [np.append(bag, np.zeros(MOST_IDS - len(bag))) for bag in weights]
    if feature['weighted']:
        arguments['weights'] = np.concatenate(weights).reshape(arguments['ids'].shape).astype(program['dtype'])
    return arguments


def batch_of(program, step, worker):
    """Return the arguments of each feature for this worker's samples of a joint batch, and targets; None without any.
    """
    random, samples = np.random.RandomState(step['seed']), step['samples']
    ids = [ids_of(program, feature, random, samples) for feature in program['features']]
    weights = [[random.uniform(0.5, 2, len(bag)) for bag in bags] for bags in ids]
    targets = random.standard_normal(samples)
    owners = {'even': np.arange(samples) % worker['size'], 'one': np.full(samples, step['seed'] % worker['size']),
              'uneven': np.minimum(random.geometric(0.5, samples) - 1, worker['size'] - 1)}[step['split']]
    mine = np.flatnonzero(owners == worker['rank'])
    if not len(mine):
        return None, None
    arguments = [arguments_of(program, feature, [bags[sample] for sample in mine], [bag[sample] for sample in mine])
                 for feature, bags, bag in zip(program['features'], ids, weights)]
    return arguments, targets[mine]


def prefetch(program, net, step, following, worker):
    """Request rows of the next batch, or of none."""
    arguments, _ = batch_of(program, following, worker)
    for number, feature in enumerate(program['features']):
        table = net.tables[feature['table']]
        if arguments is not None and not isinstance(table, gluon.nn.Embedding):
            ids = arguments[number]['ids'].reshape(-1)
            mxhybrid.prefetch(table.weight, ids if step['prefetch'] == 'next' else ids[::2] // 2, after_step=True)


def keys_of(program, table):
    """Return ids to compare: all that batches may have."""
    feature, random = {'table': 0, 'combine': None}, np.random.RandomState(0)
    return np.unique(np.concatenate(ids_of({'tables': [table]}, feature, random, 3 * table['count'])))


def run(program, worker):
    """Run a program; return the values of rows and weights by name."""
    mx.random.seed(program['seed'] + worker['rank'])
    net = Net(program)
    net.initialize(mx.init.Constant(0.4))
    name, options = program['optimizer']
    trainer = gluon.Trainer(net.collect_params(), name, dict(options),
                            kvstore=mxhybrid.create(partitions=program['partitions']))
    for table in net.tables:
        if not isinstance(table, gluon.nn.Embedding):  # MXNet adds no row_sparse gradients
            table.weight.grad_req = program['grad_req']
    net.out.weight.grad_req = program['grad_req']
    values = {}
    for number, (step, following) in enumerate(zip(program['steps'], program['steps'][1:] + program['steps'][:1])):
        table = net.tables[step['table']]
        if step['change'] == 'rate':
            trainer.set_learning_rate(trainer.learning_rate * 0.7)
        elif step['change'] in ('freeze', 'thaw') and program['grad_req'] == 'write':
            table.weight.grad_req = 'null' if step['change'] == 'freeze' else 'write'
        if step['prefetch']:
            prefetch(program, net, step, following, worker)
        arguments, targets = batch_of(program, step, worker)
        if program['grad_req'] == 'add':
            net.collect_params().zero_grad()
        with autograd.record():
            if arguments is None:
                loss = (net.out(mx.nd.zeros((1, WIDTH), dtype=program['dtype'])) * 0).sum()
            else:
                loss = ((net(arguments) - mx.nd.array(targets.reshape(-1, 1), dtype=program['dtype'])) ** 2).sum()
        loss.backward()
        trainer.step(step['samples'], ignore_stale_grad=True)
        if step['change'] == 'evaluate':
            values['evaluation %d' % number] = rows_of(program, net)
    values['rows'], values['out'] = rows_of(program, net), net.out.weight.data().asnumpy()
    return values


def rows_of(program, net):
    """Return the rows of all keys of all tables."""
    return np.concatenate([block(mx.nd.array(keys_of(program, table), dtype='int64')).asnumpy()
                           for block, table in zip(net.tables, program['tables'])])


def main():
    with open(sys.argv[1]) as file:
        programs = json.load(file)
    store = mxhybrid.create()
    worker = {'rank': store.rank, 'size': store.num_workers}
    for program in programs:
        report(store.rank, **{str(program['seed']): run(program, worker)})


if __name__ == '__main__':
    main()
