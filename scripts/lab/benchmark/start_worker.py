"""A worker of the workload `start`, which joins its job, by Horovod alone or by a store, and reports the time."""
import os
import sys
import time

if sys.argv[1] == 'hybrid':
    import mxnet as mx

    import mxhybrid  # noqa: F401 (makes kvstore='hybrid' known)

    store = mx.kv.create('hybrid')
    rank = store.rank
    total, ones = mx.nd.zeros(1), mx.nd.ones(1)
    store.init(0, total)
    store.pushpull(0, ones, out=total)
else:
    import horovod.mxnet as hvd
    import mxnet as mx

    hvd.init()
    rank = hvd.rank()
    total = hvd.allreduce(mx.nd.ones(1), average=False, name='total')
total.wait_to_read()
joined = time.time()

from lab.benchmark.measuring import cpu_seconds  # noqa: E402 (the time of their import does not count)
from lab.processes import MARKER  # noqa: E402
from lab.reports import report  # noqa: E402

report(rank, joined=joined, cpu_s=cpu_seconds(os.environ[MARKER]) if rank == 0 else 0.0)
