"""The pieces of training programs.

Every program is a script that calls these pieces. The source of each piece that it needs is copied into the script
(:mod:`lab.fuzz.script`), so the pieces use only each other and the imports of :data:`lab.fuzz.script.HEAD`.
"""
import contextlib
import os
import pickle
import sys

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import mxhybrid

#: Ids that a sample has for every branch; outputs of a net.
WORDS, OUTPUTS = 3, 2


class Branch(gluon.Block):
    """A table, and a dense layer on the rows of a sample's ids."""

    def __init__(self, kind, rows, width, units, dtype, bias=True, uses=1, shared=None, prefix=None):
        super().__init__(prefix=prefix)
        self.rows, self.uses = rows, uses
        with self.name_scope():
            same = {'params': shared.table.params} if shared is not None else {}
            if kind == 'weight':
                self.table = gluon.contrib.nn.SparseEmbedding(rows, width, dtype=dtype, **same)
            else:
                self.table = gluon.nn.Embedding(rows, width, dtype=dtype, sparse_grad=kind == 'gradient', **same)
            inputs = WORDS * width
            self.back = None
            if kind == 'tied':
                self.back = gluon.nn.Dense(rows, use_bias=False, in_units=width, flatten=False, dtype=dtype,
                                           params=self.table.params)
                inputs = WORDS * rows
            self.dense = gluon.nn.Dense(units, in_units=inputs, use_bias=bias, dtype=dtype)

    def forward(self, ids):
        """Look up rows, as often as the table is used, and mix them."""
        embedded = self.table(ids)
        for more in range(1, self.uses):
            embedded = embedded + self.table((ids + more) % self.rows) * more
        if self.back is not None:
            embedded = self.back(embedded)
        return self.dense(embedded.reshape((ids.shape[0], -1)))


class HybridBranch(gluon.HybridBlock):
    """A branch that can be hybridized as a whole; its table is an ``nn.Embedding``."""

    def __init__(self, kind, rows, width, units, dtype, bias=True, uses=1, shared=None, prefix=None):
        super().__init__(prefix=prefix)
        self.rows, self.uses = rows, uses
        with self.name_scope():
            same = {'params': shared.table.params} if shared is not None else {}
            self.table = gluon.nn.Embedding(rows, width, dtype=dtype, sparse_grad=kind == 'gradient', **same)
            self.dense = gluon.nn.Dense(units, in_units=WORDS * width, use_bias=bias, dtype=dtype)

    def hybrid_forward(self, F, ids):
        """Look up rows, as often as the table is used, and mix them."""
        embedded = self.table(ids)
        for more in range(1, self.uses):
            embedded = embedded + self.table(F.broadcast_mod(ids + more, F.full((1,), self.rows))) * more
        return self.dense(F.reshape(embedded, (0, -1)))


class Net(gluon.Block):
    """Branches under a common trunk; a batch may leave branches out."""

    def __init__(self, *branches, units=3, dtype='float32', bias=True):
        super().__init__(prefix='net_')
        self.branches, self.dtype = [], dtype
        with self.name_scope():
            for number, (make, spec) in enumerate(branches):
                spec = dict(spec)
                if 'shared' in spec:
                    spec['shared'] = self.branches[spec['shared']]
                branch = make(units=units, dtype=dtype, bias=bias, prefix='branch%d_' % number, **spec)
                self.register_child(branch)
                self.branches.append(branch)
            self.trunk = gluon.nn.Dense(4, in_units=units, activation='tanh', use_bias=bias, dtype=dtype,
                                        prefix='trunk_')
            self.out = gluon.nn.Dense(OUTPUTS, in_units=4, use_bias=bias, dtype=dtype, prefix='out_')

    def forward(self, branch, ids):
        """Return the result of one branch."""
        return self.out(self.trunk(self.branches[branch](ids)))


def make_net(job, *branches, devices=1, seed=0, **options):
    """Return a net and the list of its parameters, whose values depend on the seed and their indices only.

    MXNet alone has one device: gradients of several devices count twice if one of them had no samples in a step.
    """
    net = Net(*branches, **options)
    contexts = [mx.cpu(number) for number in range(1 if job.alone else devices)]
    params = list(net.collect_params().values())
    for number, param in enumerate(params):
        param.initialize(ctx=contexts, init=mx.init.Zero())
        draw_values(param, seed + number)
    return net, params


def draw_values(param, seed):
    """Give a parameter random values."""
    values = np.random.RandomState(seed).normal(scale=0.3, size=param.shape)
    if param._stype == 'row_sparse':
        param.set_data(mx.nd.sparse.row_sparse_array((values, np.arange(len(values))), shape=param.shape,
                                                     dtype=param.dtype))
    else:
        param.set_data(mx.nd.array(values, dtype=param.dtype))


class StoreTrainer(gluon.Trainer):
    """A Trainer of MXNet's own store, which it makes by name for several devices only, and cannot fill twice."""

    def _reset_kvstore(self):
        super()._reset_kvstore()
        self._kvstore_params['kvstore'] = mx.kv.create('device')


class Job:
    """The processes that run a program: workers with mxhybrid, or one with MXNet alone.

    ``nudge`` is a relative change of all targets: values that it changes, rounding changes, too.  ``part`` is 1 in a
    job in which a program goes on that another job began.
    """

    def __init__(self, alone, part=0):
        self.alone, self.part, self.nudge = alone, part, 0.0
        self.store = None if alone else mxhybrid.create()
        self.rank, self.size = (0, 1) if alone else (self.store.rank, self.store.num_workers)

    def barrier(self):
        """Wait for the other workers."""
        if not self.alone:
            self.store._barrier()

    def trainer(self, net, optimizer, options, on_store, asked=None, **settings):
        """Make a Trainer; `on_store`: the store updates weights; `asked`: the script says so."""
        if self.alone:
            if on_store:
                return StoreTrainer(net.collect_params(), optimizer, options, update_on_kvstore=True)
            return gluon.Trainer(net.collect_params(), optimizer, options, kvstore=None)
        return gluon.Trainer(net.collect_params(), optimizer, options, kvstore=mxhybrid.create(**settings),
                             update_on_kvstore=asked)


def joint_batch(job, net, seed, samples, use, ids):
    """Return the ids, the targets and the samples that use it, for every branch."""
    random = np.random.RandomState(seed)
    inputs = []
    for branch, used_by in zip(net.branches, use):
        shape = (samples, WORDS)
        drawn = {'any': random.randint(0, branch.rows, shape),
                 'few': random.randint(0, max(1, branch.rows // 4), shape) + branch.rows // 2,
                 'frequent': np.minimum(random.zipf(1.3, shape) - 1, branch.rows - 1),
                 'all': random.permutation(np.arange(samples * WORDS) % branch.rows).reshape(shape)}[ids]
        targets = random.normal(size=(samples, OUTPUTS))
        targets *= 1 + job.nudge * np.random.normal(size=targets.shape)
        taken = {'all': np.ones(samples, bool), 'none': np.zeros(samples, bool),
                 'some': random.rand(samples) < 0.5}[used_by]
        inputs.append((drawn, targets, taken))
    return inputs


def shares(job, seed, samples, split):
    """Return the samples that each worker gets."""
    random = np.random.RandomState(seed + 1)
    owner = {'even': np.arange(samples) % job.size,
             'uneven': np.minimum(random.geometric(0.5, samples) - 1, job.size - 1),
             'one': np.full(samples, random.randint(job.size)),
             'same': None}[split]
    return [np.ones(samples, bool) if owner is None else owner == rank for rank in range(job.size)]


def is_stale(net, batch, everyone):
    """Return whether some parameter gets no gradient on some device of some worker."""
    devices = len(net.out.weight.list_ctx())
    return any((taken & share).sum() < devices for _, _, taken in batch for share in everyone)


def forward(net, batch, share):
    """Return branch, samples, predictions and targets of a worker's share, divided among its devices."""
    contexts = net.out.weight.list_ctx()
    parts = []
    for branch, (ids, targets, taken) in enumerate(batch):
        for context, part in zip(contexts, np.array_split(np.flatnonzero(taken & share), len(contexts))):
            if len(part):
                output = net(branch, mx.nd.array(ids[part], ctx=context))
                parts.append((branch, part, output, mx.nd.array(targets[part], ctx=context, dtype=net.dtype)))
    return parts


def note_predictions(record, name, batch, outputs):
    """Record predictions by sample; samples of other workers have rows of NaN."""
    values = [np.full((len(ids), OUTPUTS), np.nan) for ids, _, _ in batch]
    for branch, part, output, _ in outputs:
        values[branch][part] = output.asnumpy()
    record(name, np.concatenate(values))


def train(job, record, net, trainer, seed, samples, use, ids, split='even', by='step', divisor=None, clip=None,
          backwards=1):
    """Make a step with this worker's share of a joint batch."""
    everyone = shares(job, seed, samples, split)
    divisor = divisor or samples
    stale = False
    for number in range(backwards):
        batch = joint_batch(job, net, seed + 1000 * number, samples, use, ids)
        with autograd.record():
            outputs = forward(net, batch, everyone[job.rank])
            losses = [((output - target) ** 2).sum() for _, _, output, target in outputs]
        if losses:
            autograd.backward(losses)
        note_predictions(record, 'predictions %d' % number, batch, outputs)
        stale = is_stale(net, batch, everyone)
    if by == 'step':
        with skipping_stale(job, trainer):
            trainer.step(divisor, ignore_stale_grad=stale)
    else:
        if by == 'hand':
            trainer.allreduce_grads()
            if clip:
                clip_gradients(record, net, clip)
        trainer.update(divisor, ignore_stale_grad=stale)


def train_ahead(job, record, net, trainer, seed, samples, steps):
    """Make steps; the rows of each batch are prefetched during the step before it."""
    share = shares(job, seed, samples, 'even')[job.rank]
    batches = []
    for number in range(steps):
        joint = joint_batch(job, net, seed + 1000 * number, samples, ['all'] * len(net.branches), 'any')
        batches.append([(mx.nd.array(ids[share]), mx.nd.array(targets[share], dtype=net.dtype))
                        for ids, targets, _ in joint])
    for batch in batches if job.alone else mxhybrid.prefetching(batches, net):
        with autograd.record():
            losses = [((net(branch, ids) - targets) ** 2).sum() for branch, (ids, targets) in enumerate(batch)]
        autograd.backward(losses)
        with skipping_stale(job, trainer):
            trainer.step(samples)


@contextlib.contextmanager
def skipping_stale(job, trainer):
    """Make MXNet alone do what it documents: where the store updates, it pushes gradients of no backward pass."""
    skipped = []
    if job.alone and trainer._kvstore_params['update_on_kvstore']:
        trained = [param for param in trainer._params if param.grad_req != 'null']
        skipped = [(param, param.grad_req) for param in trained if not any(data._fresh_grad for data in param._data)]
        for param, _ in skipped:
            param._grad_req = 'null'
    try:
        yield
    finally:
        for param, request in skipped:
            param._grad_req = request
        if job.alone:
            for param in trainer._params:
                for data in param._data if param.grad_req != 'null' else ():
                    data._fresh_grad = False


def clip_gradients(record, net, largest):
    """Clip by the global norm, on each device."""
    trained = [param for param in net.collect_params().values() if param.grad_req != 'null']
    norms = [gluon.utils.clip_global_norm([param.grad(context) for param in trained], largest)
             for context in net.out.weight.list_ctx()]
    record('norm', np.array(norms[-1]))


def evaluate(job, record, net, seed, samples, ids, ranks):
    """Predict outside of training, on some workers."""
    if job.alone or job.rank in [rank % job.size for rank in ranks]:
        batch = joint_batch(job, net, seed, samples, ['all'] * len(net.branches), ids)
        everything = np.ones(samples, bool)
        note_predictions(record, 'evaluation', batch, forward(net, batch, everything))


def look(record, trainer, params):
    """Record the values of all parameters, as they would be saved, and the learning rate."""
    record('learning rate', np.array(trainer.learning_rate))
    for number, param in enumerate(params):
        # MXNet's own copies of tables are float32.
        record('%d %s' % (number, param.name), param._reduce().tostype('default').asnumpy().astype(param.dtype))


def look_at_states(record, path):
    """Record the optimizer states in a file."""
    with open(path, 'rb') as file:
        states, optimizer = pickle.load(file)
    for key in sorted(states):
        for slot, array in enumerate(arrays_of(states[key])):
            record('state %d of %d' % (slot, key), array.tostype('default').asnumpy())
    record('updates', np.array(optimizer.num_update))


def arrays_of(state):
    """Return the arrays of an optimizer's state, which is nothing, an array, or a list of states."""
    if isinstance(state, (list, tuple)):
        return [array for part in state for array in arrays_of(part)]
    return [] if state is None else [state]


def save(job, record, net, trainer, directory, slot, kinds):
    """Save into a slot."""
    path = os.path.join(directory, slot)
    if 'parameters' in kinds and job.rank == 0:
        net.save_parameters(path + '.params')
    if 'states' in kinds:
        trainer.save_states(path + '.states')
        if job.rank == 0:
            look_at_states(record, path + '.states')
    if 'checkpoint' in kinds:
        mxhybrid.checkpoint.save(path + '.checkpoints', net, trainer, 1)
    job.barrier()


def load(job, net, trainer, directory, slot, kinds):
    """Restore the values of a slot."""
    path = os.path.join(directory, slot)
    if 'parameters' in kinds:
        net.load_parameters(path + '.params', cast_dtype=True)
    if 'states' in kinds:
        trainer.load_states(path + '.states')
    if 'checkpoint' in kinds:
        mxhybrid.checkpoint.load(path + '.checkpoints', net, trainer)
    job.barrier()


def set_value(job, params, number, seed):
    """Give one parameter new values in mid-training."""
    if job.alone:
        # MXNet alone then forgets all rows of other tables except the rows that were pulled last.
        whole = [(param, param._reduce()) for param in params if param._stype == 'row_sparse']
        for param, values in whole:
            param.set_data(values.astype(param.dtype))
    draw_values(params[number], seed)


def initialise_anew(job, net, seed, by_rank):
    """Initialise all parameters again, with the same seed on all workers, or with a different seed on each."""
    mx.random.seed(seed + (job.rank if by_rank else 0))
    net.initialize(mx.init.Uniform(0.3), ctx=net.out.weight.list_ctx(), force_reinit=True)


def read(job, params, number, ranks, write=False):
    """Get the arrays of a dense parameter on some workers, and maybe write to them."""
    if job.alone or job.rank in [rank % job.size for rank in ranks]:
        for array in params[number].list_data():
            if write:
                array[:] = array * 0.5


def repartition(job, trainer, params, number, partitions):
    """Change the number of partitions of a table, if it is on the servers by now."""
    if job.alone or not trainer._kv_initialized:
        return
    try:
        trainer._kvstore.repartition(trainer._param2idx[params[number].name], partitions)
    except mxhybrid.InputError as error:
        if 'has no table on the servers' not in str(error) and 'never initialised' not in str(error):
            raise


def prefetch(job, params, number, seed, count, after_step=False):
    """Prefetch rows, needed or not."""
    if not job.alone:
        ids = np.random.RandomState(seed + job.rank).randint(0, params[number].shape[0], count)
        mxhybrid.prefetch(params[number], ids, after_step)


def slack_of(values, nudged):
    """Return the slack for rounding by name: a multiple of the difference from another run."""
    slack = {}
    for name, value in values.items():
        if value.shape == nudged[name].shape:
            with np.errstate(invalid='ignore'):
                apart = np.abs(value.astype('float64') - nudged[name])
            slack[name] = 50 * np.max(apart, initial=0, where=np.isfinite(apart))
    return slack


def differences(expected, values, slack, rtol, atol):
    """Return the values of a worker that are not as expected: name and explanation."""
    wrong = []
    for name, value in values.items():
        if name not in expected:
            wrong.append((name, 'only in the job'))
            continue
        right = expected[name]
        if right.shape != value.shape or right.dtype != value.dtype:
            wrong.append((name, '%s %s, not %s %s' % (value.shape, value.dtype, right.shape, right.dtype)))
            continue
        mine = ~np.isnan(value) if '/predictions' in name else np.ones(value.shape, bool)
        value, right = value[mine].astype('float64'), right[mine].astype('float64')
        is_finite = np.isfinite(right)
        if not np.array_equal(np.isfinite(value), is_finite):
            wrong.append((name, 'not finite'))
            continue
        value, right = value[is_finite], right[is_finite]
        apart = np.abs(value - right) - (atol + rtol * np.abs(right) + slack.get(name, 0))
        if (apart > 0).any():
            worst = int(np.argmax(apart))
            wrong.append((name, '%.9g, not %.9g' % (value[worst], right[worst])))
    return wrong


class Record:
    """Values by event and name."""

    def __init__(self):
        self.values, self._event = {}, 0

    def at(self, event, what):
        """Begin an event."""
        self._event = event
        self.values['%02d/begun' % event] = np.array(0)

    def __call__(self, name, value):
        self.values['%02d/%s' % (self._event, name)] = np.array(value)


def main(programs, rtol, atol):
    """Run the programs of a script: record the values of MXNet alone, or compare with them."""
    alone = '--mxnet' in sys.argv[1:]
    job, record = Job(alone, int('--moved' in sys.argv[1:])), Record()
    path = os.path.splitext(os.path.abspath(__file__))[0]
    directory = path + ('.files-mxnet' if alone else '.files')
    os.makedirs(directory, exist_ok=True)
    for program in programs:
        record.values = {}
        program(job, record, directory)
    if alone:
        values, record.values = record.values, {}
        job.nudge = 1e-7
        programs[-1](job, record, directory)
        slack = {'slack of ' + name: value for name, value in slack_of(values, record.values).items()}
        np.savez(path + '.npz', **values, **slack)
        return
    with np.load(path + '.npz') as file:
        expected = {name: value for name, value in file.items() if not name.startswith('slack of ')}
        slack = {name[len('slack of '):]: value for name, value in file.items() if name.startswith('slack of ')}
    wrong = differences(expected, record.values, slack, rtol, atol)
    for name, words in wrong[:5]:
        print('worker %d, event %s: %s' % (job.rank, name, words), flush=True)
    job.barrier()
    if wrong:
        sys.exit(1)
    print('worker %d: no difference' % job.rank, flush=True)
