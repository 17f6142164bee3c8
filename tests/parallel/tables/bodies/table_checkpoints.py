"""Train nets of ``table_blocks.py``, save a checkpoint and deltas on the way, go on; load them and go on from there.

``--part save`` saves to the directory, ``--part resume`` goes on from it.  With ``--unseen``, servers find other
content in the files than worker 0, as if they were on other hosts; with ``--part refused``, their disks are full, too.
"""
import argparse
import os

import numpy as np
import table_blocks
from lab.reports import report
from table_blocks import fit, make, store, values

import mxhybrid
from mxhybrid.checkpoint import dynamic_tables
from mxhybrid.servers import dynamic_table
from tests.helpers.outcomes import error_of

SAVED_AT, STEPS = 5, 9
ADAGRAD = ('adagrad', {'learning_rate': 0.1}, 'float32')
CASES = {
    'momentum': ('sgd', {'learning_rate': 0.1, 'momentum': 0.9}, 'float64', {}),
    'adam': ('adam', {'learning_rate': 0.05}, 'float64', {}),
    'groupadagrad': ('groupadagrad', {'learning_rate': 0.1}, 'float32', {}),
    # The capacity is not reached; updates are counted.
    'expiry on store': (*ADAGRAD, {'expire_after': 3, 'capacity': 1000, 'evict': 'rarest'}),
    'admission': (*ADAGRAD, {'admit': 2}), 'bfloat16': (*ADAGRAD, {'row_dtype': 'bfloat16'})}
table_blocks.CASES.update(CASES)


def train(case, model, begin, end):
    """Make some steps; one renews a store that updates, and tables keep their state."""
    net, trainer = model
    for step in range(begin, end):
        fit(net, trainer, [step], CASES[case][2], prefetches=False)
        if step == 3:
            net.out.weight.set_data(net.out.weight.data())
    return {name: array.asnumpy() for name, array in values(net).items()}


def save(directory, case):
    model = make(case)
    for begin, end in ((0, 2), (2, 4), (4, SAVED_AT)):
        train(case, model, begin, end)
        mxhybrid.checkpoint.save(os.path.join(directory, case), *model, end, extra=case, delta=True)
    return train(case, model, SAVED_AT, STEPS)


def resume(directory, case):
    model = make(case, 99)
    checkpoint = mxhybrid.checkpoint.load(os.path.join(directory, case), *model)
    assert (checkpoint.step, checkpoint.extra) == (SAVED_AT, case)
    return train(case, model, SAVED_AT, STEPS)


def refused(directory):
    """Return the errors of a load into a table of other rows, and of a save that servers cannot make."""
    model = make('adam', 99, rows=2 * table_blocks.ROWS)
    errors = [error_of(mxhybrid.checkpoint.load, os.path.join(directory, 'adam'), *model)]
    train('adam', model, 0, 1)
    errors.append(error_of(mxhybrid.checkpoint.save, os.path.join(directory, 'unseen'), *model, 1))
    train('adam', model, 0, 1)
    return errors


def imported():
    """Return imported rows, as all workers read them; the table is initialised again between two imports."""
    net, trainer = make('adam', 99)
    items = net.tables['items']
    rows = np.random.RandomState(0).standard_normal((50, 4)) if store.rank == 0 else np.zeros((0, 4))
    mxhybrid.checkpoint.import_rows(items, None, -rows)
    items.initialize(force_reinit=True)
    mxhybrid.checkpoint.import_rows(items, None, rows)
    return items(np.arange(50)).asnumpy()


def full(*_):
    raise mxhybrid.CheckpointError('cannot write rows of a dynamic table')


parser = argparse.ArgumentParser()
parser.add_argument('--part', choices=['save', 'resume', 'refused'])
parser.add_argument('--directory')
parser.add_argument('--unseen', action='store_true')
args = parser.parse_args()
if args.unseen:
    dynamic_table.digest_of = lambda path: 'that of another file'
    dynamic_tables._PIECE_BYTES = 200
if args.part == 'refused':
    dynamic_table.fetch = full
    report(store.rank, errors=refused(args.directory), imported=imported())
else:
    part = {'save': save, 'resume': resume}[args.part]
    report(store.rank, **{case: part(args.directory, case) for case in CASES})
