"""Resources that slow each other down while several of them are busy, as cores do that share caches and memory."""
from typing import NamedTuple, Sequence, Tuple

import numpy as np

from ...base.errors import InputError
from .token_bucket import TokenBucket


class ResourceGroup(NamedTuple):
    """Some resources.

    Attributes
    ----------
    resources : tuple of int
        Their numbers.
    shares : tuple of float
        By number of them that are busy, from 1 on: share of its rate that each has then.  The first is 1, and no share
        is larger than the one before it.
    """

    resources: Tuple[int, ...]
    shares: Tuple[float, ...]


def grouped(resources: Sequence[TokenBucket], groups: Sequence[ResourceGroup]) -> Tuple[np.ndarray, np.ndarray]:
    """Return the arrays `group` and `slowed` of :class:`~.event_loop.Rates`.

    Raises
    ------
    InputError
        For a resource that is not there, is in two groups or has a burst, and for shares that cannot be.
    """
    group = np.full(len(resources), -1, np.int32)
    slowed = np.ones((len(groups), 1 + max((len(one.resources) for one in groups), default=0)))
    for number, (members, shares) in enumerate(groups):
        if len(shares) != len(members) or shares[:1] != (1.0,) or not all(
                0 < share <= before for share, before in zip(shares, (1.0,) + tuple(shares))):
            raise InputError('group %d: shares=%r: give a number for each of its %d resources: 1, then numbers above 0 '
                             'that do not grow' % (number, shares, len(members)))
        for one in members:
            if not 0 <= one < len(resources) or group[one] >= 0 or resources[one].burst > 0:
                raise InputError('group %d: resource %d: give one that is there, in no other group, without a burst'
                                 % (number, one))
            group[one] = number
        slowed[number, 1:1 + len(shares)] = shares
    return group, slowed
