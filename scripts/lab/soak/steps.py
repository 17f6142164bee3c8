"""The loop of both bodies: steps until all workers agree to end, and the report at the end.

The arguments of a body are SECONDS STEPS DIRECTORY: the steps end after the seconds and steps, once the directory has
the file `sampled`.
"""
import itertools
import os
import sys
import time

import mxnet as mx

import mxhybrid
from lab.reports import report
from mxhybrid.job.join import current

#: Steps after which progress is printed, and workers agree whether to go on.
TELL = 100

#: The directory of the job.
DIRECTORY = sys.argv[3]


def steps():
    """Yield the numbers of steps, from 0 on, until all workers agree to end."""
    until, least = time.monotonic() + float(sys.argv[1]), int(sys.argv[2])
    store = mxhybrid.create()
    store.init('late', mx.nd.zeros(1))
    for done in itertools.count(1):
        yield done - 1
        if done % TELL == 0:
            if store.rank == 0:
                print('soak: %d steps' % done, flush=True)
            is_late = time.monotonic() > until and done >= least and os.path.exists(os.path.join(DIRECTORY, 'sampled'))
            late = mx.nd.array([is_late])
            store.pushpull('late', late, out=late)
            if late.asscalar() == store.num_workers:
                return


def finish(rank, done, **values):
    """Report the number of steps that a worker has made, its requests to servers, and other values."""
    client = current().servers.client
    report(rank, steps=done, pid=os.getpid(), requests=client.requests if client else 0, **values)
