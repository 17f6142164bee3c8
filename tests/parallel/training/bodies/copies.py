"""Copy arrays of worker 0, of several types and of more than one piece, to all workers."""
import mxnet as mx
import numpy as np
from lab.reports import report

import mxhybrid  # noqa: F401

SIZES = {'float32': 5300001, 'float16': 4500003, 'float64': 7, 'uint8': 33}


def main():
    """Report whether the bytes are those of worker 0, also of zeros with a sign and of values that are no numbers."""
    store = mx.kv.create('hybrid')
    same = {}
    for name, count in SIZES.items():
        expected = (np.random.RandomState(count).standard_normal(count) * 100).astype(name)
        if name != 'uint8':
            expected[:3] = [-0.0, np.nan, np.inf]
        array = mx.nd.array(expected if store.rank == 0 else np.zeros(count), dtype=name)
        store.backend.broadcast(array, name)
        same[name] = array.asnumpy().tobytes() == expected.tobytes()
    report(store.rank, same=same)


if __name__ == '__main__':
    main()
