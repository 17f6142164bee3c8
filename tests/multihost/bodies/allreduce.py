"""An allreduce of Horovod, without mxhybrid."""
import os
import socket

import horovod.mxnet as hvd
import mxnet as mx
from lab.reports import report

hvd.init()
total = hvd.allreduce(mx.nd.ones(4) * (hvd.rank() + 1), average=False, name='total')
report(hvd.rank(), total=total, host=socket.gethostname(), local_size=hvd.local_size(), pid=os.getpid())
