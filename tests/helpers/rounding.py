"""Error bounds, in float64, of float16 sums over workers and of the optimizers that use these sums."""
import numpy as np

U = 2.0 ** -11  # unit roundoff of float16
TINY = 2.0 ** -25  # half the distance of its smallest values


def sum_bound(parts):
    """Bound of the error of a float16 sum of `parts`, in any order of addition, unless it overflows.

    Each part is rounded once, by (1 + e), |e| <= U, or by TINY at most; then it takes part in at most
    len(parts) - 1 additions, which round by (1 + e) each and are exact among the smallest values.
    """
    count = len(parts)
    return ((1 + U) ** count - 1) * sum(np.abs(part) for part in parts) + count * TINY * (1 + U) ** count


def servers_bound(parts):
    """Bound of the error of a sum on servers: each part is rounded once, the sum, in float32, as good as not."""
    return sum(pull_bound(part) for part in parts) + 2.0 ** -22 * len(parts) * sum(np.abs(part) for part in parts)


def pull_bound(values):
    """Bound of the error of pulled values."""
    return np.maximum(U * np.abs(values), TINY)


class Sgd:
    """Interval arithmetic of momentum SGD without weight decay: steps are linear in gradients, so are errors."""

    def __init__(self, shape, learning_rate, momentum=0.0):
        self.rate, self.momentum = learning_rate, momentum
        self.speed, self.error = np.zeros(shape), np.zeros(shape)

    def step(self, ids, gradients, bound):
        """Update rows `ids` with gradients within `bound` of `gradients`."""
        self.speed[ids] = self.momentum * self.speed[ids] + self.rate * bound
        self.error[ids] += self.speed[ids]


class Adam:
    """Interval arithmetic of Adam (Kingma & Ba, algorithm 1, in MXNet's form) without weight decay."""

    def __init__(self, shape, learning_rate, beta1=0.9, beta2=0.999, epsilon=1e-8):
        self.rate, self.betas, self.epsilon, self.count = learning_rate, (beta1, beta2), epsilon, 0
        self.low, self.mean, self.high = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.least, self.square, self.most = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.error = np.zeros(shape)

    def step(self, ids, gradients, bound):
        """Update rows `ids` with gradients within `bound` of `gradients`."""
        beta1, beta2 = self.betas
        self.count += 1
        for array, value in ((self.low, gradients - bound), (self.mean, gradients), (self.high, gradients + bound)):
            array[ids] = beta1 * array[ids] + (1 - beta1) * value
        size = np.abs(gradients)
        for array, value in ((self.least, np.maximum(size - bound, 0)), (self.square, size), (self.most, size + bound)):
            array[ids] = beta2 * array[ids] + (1 - beta2) * value ** 2
        rate = self.rate * np.sqrt(1 - beta2 ** self.count) / (1 - beta1 ** self.count)

        def ratio(mean, square):
            return rate * mean[ids] / (np.sqrt(square[ids]) + self.epsilon)

        exact = ratio(self.mean, self.square)
        ends = [ratio(mean, square) for mean in (self.low, self.high) for square in (self.least, self.most)]
        self.error[ids] += np.max([np.abs(end - exact) for end in ends], axis=0)
