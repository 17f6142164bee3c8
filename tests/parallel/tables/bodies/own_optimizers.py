"""Optimizers of a user's own, for ``row_wise.py``: servers import this module by its name."""
import mxnet as mx

import mxhybrid


@mxhybrid.row_wise
@mx.optimizer.register
class HeavyBall(mx.optimizer.Optimizer):
    """Lazy momentum by MXNet's own sparse operator, with rates from attributes of several kinds."""

    def __init__(self, betas=(0.9, 0.5), rates=None, **keywords):
        super().__init__(**keywords)
        self.betas, self.rates = betas, rates or {'early': [1.0, 0.5], 'late': [0.25]}

    def create_state(self, index, weight):
        """Velocity, row_sparse as the weight."""
        return mx.nd.zeros(weight.shape, weight.context, dtype=weight.dtype, stype=weight.stype)

    def update(self, index, weight, grad, state):
        """Touched rows only."""
        self._update_count(index)
        count = self._index_update_count[index]
        beta, _ = self.betas
        rate = self.rates['early'][count % 2] if count < 12 else self.rates['late'][0]
        mx.nd.sparse.sgd_mom_update(weight, grad, state, out=weight, lr=rate * self._get_lr(index),
                                    wd=self._get_wd(index), momentum=beta, rescale_grad=self.rescale_grad)


@mxhybrid.row_wise
@mx.optimizer.register
class Anchored(mx.optimizer.Optimizer):
    """All rows are drawn to where they were at first; state of two kinds, one of them shorter rows."""

    def __init__(self, pull=0.1, **keywords):
        super().__init__(**keywords)
        self.pull = pull

    def create_state(self, index, weight):
        """First values, and how often each row was drawn."""
        count = mx.nd.zeros(weight.shape[:1] + (1,) * (len(weight.shape) - 1), dtype=weight.dtype)
        return weight.copy(), (count, None)

    def update(self, index, weight, grad, state):
        """Update by dense arrays; the weight comes back without rows of zeros."""
        self._update_count(index)
        first, (count, _) = state
        now, anchor, step = (array.copyto(mx.nd.zeros(weight.shape, dtype=weight.dtype))
                             for array in (weight, first, grad))
        count[:] += 1
        step = step * self.rescale_grad + self.pull * (now - anchor) / mx.nd.sqrt(count)
        (now - self._get_lr(index) * (step + self._get_wd(index) * now)).copyto(weight)
