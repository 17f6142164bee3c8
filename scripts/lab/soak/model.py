"""MXNet's lazy optimizers of row_sparse weights, in NumPy: only rows with a gradient change.

Formulas of ``src/operator/optimizer_op-inl.h`` in MXNet 1.9.1 (``SGDUpdateDnsRspImpl``, ``SGDMomLazyUpdateRspImpl``,
``AdamLazyUpdateRspImpl``) with ``wd = 0``; Adam's learning rate is corrected for its bias in
``python/mxnet/optimizer/optimizer.py``.  Its operators take their parameters as float32, whatever the weights are.
"""
import numpy as np


class Sgd:
    """Stochastic gradient descent, with momentum or without."""

    def __init__(self, shape, dtype, momentum=0.0):
        self.weights, self._velocity = np.zeros(shape, dtype), np.zeros(shape, dtype)
        self._momentum = float(np.float32(momentum))

    def update(self, ids, rows, rate):
        """Apply a summed gradient; `ids` are unique."""
        self._velocity[ids] = self._momentum * self._velocity[ids] - rate * rows
        self.weights[ids] += self._velocity[ids]


class Adam:
    """Adam (Kingma and Ba, 2015) as MXNet has it; every update counts, one without rows too."""

    beta1, beta2, epsilon = 0.9, 0.999, float(np.float32(1e-8))

    def __init__(self, shape, dtype):
        self.weights, self._mean, self._square = (np.zeros(shape, dtype) for _ in range(3))
        self._count = 0

    def update(self, ids, rows, rate):
        """Apply a summed gradient; `ids` are unique."""
        self._count += 1
        rate = float(np.float32(rate * np.sqrt(1 - self.beta2 ** self._count) / (1 - self.beta1 ** self._count)))
        beta1, beta2 = np.float32(self.beta1), np.float32(self.beta2)
        self._mean[ids] = float(beta1) * self._mean[ids] + float(1 - beta1) * rows
        self._square[ids] = float(beta2) * self._square[ids] + float(1 - beta2) * rows ** 2
        self.weights[ids] -= rate * self._mean[ids] / (np.sqrt(self._square[ids]) + self.epsilon)
