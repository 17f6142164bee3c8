"""All workers push and pull the same rows for some steps."""
import mxnet as mx
import numpy as np
from lab.reports import report

import mxhybrid

ROWS, WIDTH, TOUCHED, STEPS = 5000, 64, 2000, 60

store = mxhybrid.create()
store.init('table', mx.nd.sparse.zeros('row_sparse', (ROWS, WIDTH)))
store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
out = mx.nd.sparse.zeros('row_sparse', (ROWS, WIDTH))
total = np.zeros(ROWS)
for step in range(STEPS):
    ids = np.sort(np.random.RandomState(step).choice(ROWS, TOUCHED, replace=False))
    total[ids] += store.num_workers
    store.push('table', mx.nd.sparse.row_sparse_array((np.ones((TOUCHED, WIDTH), np.float32), ids), (ROWS, WIDTH)))
    store.row_sparse_pull('table', out=out, row_ids=mx.nd.array(ids, dtype='int64'))
    np.testing.assert_array_equal(out.data.asnumpy(), np.repeat(-total[ids, None], WIDTH, 1).astype('float32'))
report(store.rank, payload=STEPS * TOUCHED * WIDTH * 4, network=store._job.network(), table=store.report())
