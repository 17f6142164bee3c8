"""Groups of resources that slow each other down while several of them are busy, as cores that share caches do."""
from typing import NamedTuple, Sequence, Tuple

import numpy as np

from ...base.errors import InputError
from .token_bucket import TokenBucket


class ResourceGroup(NamedTuple):
    """Resources that slow each other down.

    Attributes
    ----------
    resources : tuple of int
        The numbers of the resources.
    shares : tuple of float
        By the number of busy resources, from 1 on: the share of its rate that each of them keeps.  The first share is
        1, and no share is larger than the one before it.
    """

    resources: Tuple[int, ...]
    shares: Tuple[float, ...]


class ResourceRates(NamedTuple):
    """The token buckets of all resources and their groups, as arrays.

    Attributes
    ----------
    rate, peak, burst : numpy.ndarray of float64, shape (resources,)
        See :class:`~.token_bucket.TokenBucket`.
    group : numpy.ndarray of int32, shape (resources,)
        The number of each resource's group; -1 for none.
    shares : numpy.ndarray of float64, shape (groups, width)
        By group, then by the number of its busy resources, from 0 on: the share of its rate that each of them keeps.
    """

    rate: np.ndarray
    peak: np.ndarray
    burst: np.ndarray
    group: np.ndarray
    shares: np.ndarray


def group_arrays(resources: Sequence[TokenBucket], groups: Sequence[ResourceGroup]) -> Tuple[np.ndarray, np.ndarray]:
    """Return the arrays `group` and `shares` of :class:`ResourceRates`.

    Raises
    ------
    InputError
        A resource does not exist, is in two groups or has a burst; or shares are out of range or grow.
    """
    group_of = np.full(len(resources), -1, np.int32)
    shares_of = np.ones((len(groups), 1 + max((len(group.resources) for group in groups), default=0)))
    for number, (members, shares) in enumerate(groups):
        if len(shares) != len(members) or shares[:1] != (1.0,) or not all(
                0 < share <= before for share, before in zip(shares, (1.0,) + tuple(shares))):
            raise InputError('group %d: shares=%r: give one number for each of its %d resources: 1, then numbers above '
                             '0 that do not grow' % (number, shares, len(members)))
        for resource in members:
            if not 0 <= resource < len(resources) or group_of[resource] >= 0 or resources[resource].burst > 0:
                raise InputError('group %d: resource %d: give a resource that exists, has no burst and is in no other '
                                 'group' % (number, resource))
            group_of[resource] = number
        shares_of[number, 1:1 + len(shares)] = shares
    return group_of, shares_of
