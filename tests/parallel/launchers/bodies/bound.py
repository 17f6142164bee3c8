"""Report the cores that the threads of a worker, and its children, may use, for ``test_other_launchers.py``."""
import multiprocessing
import os

import mxnet as mx
from lab.reports import report

import mxhybrid


def child_cores(sender):
    """Send the cores of a forked process."""
    sender.send(sorted(os.sched_getaffinity(0)))


allowed = sorted(os.sched_getaffinity(0))
mx.nd.ones(9).wait_to_read()  # the engine's threads come before the store
store = mxhybrid.create()
value = mx.nd.ones((3, 2)) * (store.rank + 1)
store.init('value', mx.nd.zeros((3, 2)))
store.pushpull('value', value, out=value)
value.wait_to_read()
receiver, sender = multiprocessing.get_context('fork').Pipe(False)
child = multiprocessing.get_context('fork').Process(target=child_cores, args=(sender,))
child.start()
report(store.rank, allowed=allowed, value=value, child=receiver.recv(),
       threads=[sorted(os.sched_getaffinity(int(thread))) for thread in os.listdir('/proc/self/task')])
child.join(60)
