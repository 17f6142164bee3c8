"""The pieces of a script about one network: values, places of samples, the plan, the network, comparison.

A script holds the source of each piece that it needs (:mod:`lab.fuzz.networks.script`), so these pieces and those of
:mod:`.training` refer only to each other and to the imports in the head of such a script.
"""
import functools
import os
import zlib

import mxnet as mx
import numpy as np
from mxnet import gluon

import mxhybrid

#: The number of the first call that evaluates.
EVALUATION = 50

#: The largest relative difference that needs no explanation, of the largest value of an array.
TOLERANCE = 1e-9


class ByName(mx.init.Initializer):
    """Values that depend on the name of a parameter only: short binary fractions, whose sums have no rounding error."""

    def __call__(self, desc, array):
        """Fill an array."""
        random = np.random.RandomState(zlib.crc32(str(desc).encode()) % 2 ** 32)
        values = random.randint(-4, 5, array.shape) / 8
        if str(desc).endswith(('gamma', 'running_var')):
            values = 1 + values / 2
        array[:] = mx.nd.array(values, dtype=array.dtype)


def values_of(kind, shape, dtype, limit, seed):
    """Draw the values of an input: 'ids' below `limit`, 'ties' with many zeros of both signs, or 'reals'."""
    random = np.random.RandomState(seed)
    if kind == 'ids':
        return random.randint(0, limit, shape).astype(dtype)
    if kind == 'reals':
        return random.uniform(-1, 1, shape).astype(dtype)
    values = random.randint(0, 5, shape) / 4 * random.randint(0, 2, shape)
    return np.where(random.randint(0, 2, shape) > 0, values, -values).astype(dtype)


def batch_of(spec, step, call):
    """Draw a joint batch, an array for each input; a network of float64 takes values of float32 as they are."""
    values = [values_of(each['values'], tuple(each['shape']), each['dtype'], each['limit'],
                        1000 * step + 100 * call + number) for number, each in enumerate(spec['inputs'])]
    return [array.astype(spec['dtype']) if array.dtype.kind == 'f' else array for array in values]


def weights_of(shape, step, number):
    """Draw the gradient of an output: short binary fractions."""
    return np.random.RandomState(100 * step + number).randint(-8, 9, shape) / 8


def rows_of(length, before, samples, count):
    """Find which elements of a dimension belong to samples: it is `before` times all samples, each of as many."""
    return np.arange(length).reshape(before, count, -1)[:, samples].reshape(-1)


def place_of(shape, head, samples, count):
    """Find which elements of an output a worker has: a dimension, -1 for everything, and places in it."""
    shape, whole = tuple(shape), tuple(head['shape'])
    if shape == whole:
        return [-1]
    axes = [axis for axis, (one, other) in enumerate(zip(shape, whole)) if one != other]
    if len(shape) != len(whole) or len(axes) > 1 or whole[axes[0]] % count:
        raise ValueError('an output has shape %s: neither %s nor samples of it' % (shape, whole))
    before = next((before for axis, before in head['samples'] or () if axis == axes[0]), 1)
    rows = rows_of(whole[axes[0]], before, samples, count)
    if len(rows) != shape[axes[0]]:
        raise ValueError('an output has shape %s: not samples %d to %d of %s' % (
            shape, samples.start, samples.stop, whole))
    return [axes[0], *rows]


def within(box):
    """Make an index of a place."""
    axis, *rows = [int(each) for each in box]
    return Ellipsis if axis < 0 else (slice(None),) * axis + (np.array(rows),)


@functools.lru_cache(maxsize=None)
def own_operator(asks):
    """Register an operator of a user; return its name.  It `asks` for the gradient of its output, or is a loss."""
    class Operator(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            self.assign(out_data[0], req[0], in_data[0] * in_data[0] / 4)

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            self.assign(in_grad[0], req[0], in_data[0] * out_grad[0] / 2 if asks else out_data[0] - 0.5)

    class Properties(mx.operator.CustomOpProp):
        def __init__(self):
            super().__init__(need_top_grad=asks)

        def create_operator(self, ctx, shapes, dtypes):
            return Operator()
    name = 'own_operator' if asks else 'own_loss'
    mx.operator.register(name)(Properties)
    return name


class Splits(mxhybrid.parallel.Plan):
    """A plan that has the splits of some operators, by their labels; others follow from data parallelism."""

    name = 'splits'

    def __init__(self, splits):
        self.splits = splits

    def resolve(self, graph, dimensions, ranks):
        """Return the splits, as :meth:`mxhybrid.parallel.Plan.resolve`."""
        from mxhybrid.parallel.sharding.split import Split
        settled = super().resolve(graph, dimensions, ranks)
        for operator in graph.computing:
            if graph.label(operator) in self.splits:
                degrees, ranks, partials, copies = self.splits[graph.label(operator)]
                settled.splits[operator.number] = Split(degrees, ranks, partials, copies)
        return settled

    def _layers_as_json(self):
        return {'plan': 'splits', 'splits': self.splits}


def plan_of(plan):
    """Make a plan of its data."""
    kind, arguments = plan['kind'], {name: value for name, value in plan.items() if name != 'kind'}
    recomputed = arguments.pop('recompute', None)
    if recomputed:
        return plan_of(dict(arguments, kind=kind)).with_recompute(recomputed)
    if kind == 'splits':
        return Splits(arguments['splits'])
    if kind == 'layers':
        return mxhybrid.parallel.by_name(arguments['by_pattern'])
    if 'inside' in arguments:
        arguments['inside'] = plan_of(arguments['inside'])
    return getattr(mxhybrid.parallel, kind)(**arguments)


def prepared(make, spec):
    """Make and initialise the network."""
    net = make()
    net.cast(spec['dtype'])
    net.initialize(ByName())
    for name, param in net.collect_params().items():
        if name.endswith('gamma') and param.grad_req == 'null':
            param.initialize(mx.init.One(), force_reinit=True)  # MXNet writes that where the scale is fixed
        if name in spec['frozen']:
            param.grad_req = 'null'
    return net


def trainer_of(net, spec, **how):
    """Make a Trainer; None for a network without parameters, for which MXNet makes none."""
    params = net.collect_params()
    return gluon.Trainer(params, 'sgd', spec['optimizer'], **how) if len(params.keys()) else None


def as_list(outputs):
    """Put outputs into a list."""
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def records_in(directory, workers):
    """Read the results of all workers from the files that they left."""
    records = []
    for rank in range(workers):
        with np.load(os.path.join(directory, 'record.%d.npz' % rank)) as file:
            records.append(dict(file))
    return records


def joined(records, spec, tolerance=1e-12, slack=None):
    """Join the results of all workers; return them and problems.

    Copies of the same elements may differ by a tolerance, relative to the largest value of the array, and a slack.
    """
    whole, problems = {}, []
    for rank, record in enumerate(records):
        for name, value in record.items():
            if name.startswith('box of '):
                continue
            step = int(name.split()[0])
            if ' output ' in name:
                head = spec['heads'][int(name.split('/')[1])]
                box, cut = within(record['box of ' + name]), int(record['box of ' + name][0])
                if cut >= 0 and head['samples'] is not None and cut not in [axis for axis, _ in head['samples']]:
                    problems.append((step, '%s is cut along dimension %d, which has no samples' % (name, cut)))
                values, known = whole.setdefault(name, (np.zeros(head['shape'], value.dtype),
                                                        np.zeros(head['shape'], bool)))
                scale = np.abs(np.where(np.isfinite(value), value, 0)).max(initial=1)
                most = tolerance * scale + (0 if slack is None else slack.get(name, 0))
                same = np.isclose(values[box], value, rtol=0, atol=most, equal_nan=True)
                if not (same | ~known[box]).all():
                    problems.append((step, '%s: worker %d has other values of the same elements' % (name, rank)))
                values[box] = value
                known[box] = True
            elif ' gradient ' in name:
                each = spec['inputs'][int(name.split('data')[1].split('/')[0])]
                values, known = whole.setdefault(name, (np.zeros(each['shape']), np.zeros(each['shape'], bool)))
                box = Ellipsis
                if each['axis'] is not None:
                    low = rank * spec['samples'] // len(records)
                    box = (slice(None),) * each['axis'] + (slice(low, low + value.shape[each['axis']]),)
                values[box] += value
                known[box] = True
            else:
                whole[name] = value, np.ones(value.shape, bool)
                if ' refused ' in name and not all(name in other for other in records):
                    problems.append((step, 'some workers refused an event: %s' % value))
    for name, (_, known) in whole.items():
        if not known.all():
            problems.append((int(name.split()[0]), '%s: %d elements are on no worker' % (name, (~known).sum())))
    return {name: values for name, (values, _) in whole.items()}, problems


def masks_problems(values_by_name, spec):
    """Check random values by their counts: shares of zeros, one value along axes."""
    problems = []
    for name, values in values_by_name.items():
        head = spec['heads'][int(name.split('/')[1])] if ' output ' in name else None
        check = head['drawn'] if head else None
        if isinstance(check, dict) and int(name.split()[2].split('/')[0]) < EVALUATION:
            for axis in check['axes']:
                if (np.take(values, [0], axis) == 0).tolist() != (np.take(values, [-1], axis) == 0).tolist():
                    problems.append((int(name.split()[0]), '%s: another mask along axis %d' % (name, axis)))
            alone = (values == 0)[tuple(slice(0, 1) if axis in check['axes'] else slice(None)
                                        for axis in range(values.ndim))]
            most = 6 * np.sqrt(check['p'] * (1 - check['p']) * alone.size) + 1
            if abs(alone.sum() - check['p'] * alone.size) > most:
                problems.append((int(name.split()[0]), '%s: %d of %d are dropped' % (name, alone.sum(), alone.size)))
    return problems


def differences(values, whole, others=(), slack=None, tolerance=TOLERANCE):
    """List the arrays that differ from one process or are missing, as (step, description).

    A value may also equal the one in `others`.
    """
    problems = []
    for name, expected in whole.items():
        if name.startswith('box of '):
            continue
        step = int(name.split()[0])
        if name not in values:
            problems.append((step, '%s is not there' % name))
            continue
        value = values[name]
        if value.shape != expected.shape:
            problems.append((step, '%s has shape %s, not %s' % (name, value.shape, expected.shape)))
            continue
        scale = np.abs(np.where(np.isfinite(expected), expected, 0)).max(initial=1e-3)
        most = tolerance * scale + (0 if slack is None else slack.get(name, 0))
        bad = np.ones(expected.shape, bool)
        for other in [whole, *others]:
            bad &= ~(np.isclose(value, other[name], rtol=0, atol=1e-300, equal_nan=True)
                     | (np.abs(value.astype('f8') - other[name].astype('f8')) <= most))
        if bad.any():
            where = tuple(int(coordinate) for coordinate in np.argwhere(bad)[0])
            problems.append((step, '%s%s: %.12g, not %.12g; %d of %d elements differ' % (
                name, list(where), value[where], expected[where], bad.sum(), bad.size)))
    return sorted(problems, key=lambda each: each[0])


def report(directory, workers, spec, tolerance, run_whole):
    """Print how the results of all workers differ from one process, which is run with their random values."""
    values, problems = joined(records_in(directory, workers), spec, tolerance if tolerance > TOLERANCE else 1e-12)
    problems += masks_problems(values, spec)
    problems += differences(values, run_whole(values), tolerance=tolerance)
    print('\n'.join('step %d: %s' % problem for problem in problems) or 'no difference', flush=True)
