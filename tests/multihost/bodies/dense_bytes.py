"""Sum a dense array many times; the bytes of the array, times the number of sums, are reported."""
import mxnet as mx
import numpy as np
from lab.reports import report

import mxhybrid

# Enough sums to outweigh, on the wire, the start of the job and the broadcast of the initial value.
SHAPE, STEPS = (500, 500), 40

store = mxhybrid.create()
store.init('dense', mx.nd.zeros(SHAPE))
values = mx.nd.zeros(SHAPE)
for step in range(STEPS):
    values[:] = step
    store.pushpull('dense', values, out=values)
np.testing.assert_array_equal(values.asnumpy(), np.full(SHAPE, (STEPS - 1) * store.num_workers, np.float32))
report(store.rank, payload=STEPS * SHAPE[0] * SHAPE[1] * 4)
