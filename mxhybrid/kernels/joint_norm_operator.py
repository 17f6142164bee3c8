"""A BatchNorm over several workers as one operator in graphs, compiled in ``src/operators/joint_norm_operator.h``."""
import functools
from typing import Any, NamedTuple, Tuple

from .norm_operators import CompiledOperator


class JointNorm(NamedTuple):
    """A part of a BatchNorm whose statistics are those of several parts."""

    #: That of the part.
    shape: Tuple[int, ...]
    #: The dimension of channels.
    axis: int
    #: The share of each part in all elements.
    shares: Tuple[float, ...]
    #: The position of this part among all parts.
    position: int
    #: The number that is added to a variance.
    epsilon: float
    #: Whether gamma is 1, and not among the parameters.
    fixes_gamma: bool
    #: Whether 0 takes the place of negative values, as in a relu.
    rectifies: bool = False
    #: Whether the output has the largest value of each window of two rows and two columns, as in a pooling.  The part
    #: has images with an even number of rows and of columns, and its channels are dimension 1.
    pools: bool = False

    @property
    def channels(self) -> int:
        """The number of channels of the part."""
        return self.shape[self.axis]

    @property
    def statistics_size(self) -> int:
        """The number of elements of the statistics."""
        return (1 + len(self.shares)) * 2 * self.channels


class JointNormOperator(CompiledOperator):
    """A BatchNorm of float32 with two transfers: of the moments of all parts, and of their gradients.

    The transfers are :class:`mxhybrid.lane.transfers.PersistentTransfer`. Without them, which is None, all parts are
    like this one.  The rules of :class:`~.transfer_operator.TransferOperator` for arrays hold for all arrays of this
    operator, too.
    """

    def __init__(self, norm: JointNorm, forward: Any, backward: Any):
        super().__init__('joint_norm', *(transfer and transfer.pointer for transfer in (forward, backward)),
                         len(norm.shape), tuple(map(int, norm.shape)), norm.axis, len(norm.shares),
                         tuple(map(float, norm.shares)), norm.position, norm.epsilon, int(norm.fixes_gamma),
                         int(norm.rectifies), int(norm.pools), pushes=True)

    def symbol(self, name: str, token: Any, data: Any, parameters: Any) -> Tuple[Any, Any, Any]:
        """Return the symbols of the token after the operator, the normalized data, and the statistics.

        `parameters` are gamma and beta, one after the other.  The statistics are an array of one dimension: the mean
        and the variance of all channels, then those of each part.
        """
        after, normalized, statistics = self.in_graph(token, data, parameters, name=name)
        return after, normalized, statistics


@functools.lru_cache(maxsize=None)
def local_joint_norm(norm: JointNorm) -> JointNormOperator:
    """Return an operator without transfers, which is never deleted, since graphs may run at any time."""
    return JointNormOperator(norm, None, None)
