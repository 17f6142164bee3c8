"""The speed of resources: token buckets, and groups that slow each other down while several of them are busy, as cores
that share caches do.
"""
import dataclasses
from typing import NamedTuple, Sequence, Tuple

import numpy as np

from ...base.errors import InputError


@dataclasses.dataclass(frozen=True)
class TokenBucket:
    """The speed of a resource: `rate` units a second, and after idle time up to `burst` units more, at `peak` a second.

    A unit is a byte of a link or a second of a core.  A link under ``tc tbf`` and a core under a quota of cgroups
    behave like this.  Without a burst only the rate counts.
    """

    rate: float
    peak: float = 0.0
    burst: float = 0.0


class ResourceGroup(NamedTuple):
    """Resources that slow each other down."""

    #: The numbers of the resources.
    resources: Tuple[int, ...]
    #: By the number of busy resources, from 1 on: the share of its rate that each of them keeps for work that is bound
    #: by arithmetic.  The first share is 1, and no share is larger than the one before it.
    shares: Tuple[float, ...]
    #: The same for work that is bound by memory; by default as for arithmetic.
    memory_shares: Tuple[float, ...] = ()


class ResourceRates(NamedTuple):
    """The token buckets of all resources and their groups, as arrays."""

    #: See :class:`TokenBucket`.
    rate: np.ndarray
    peak: np.ndarray
    burst: np.ndarray
    #: The number of each resource's group; -1 for none.
    group: np.ndarray
    #: By group, then for arithmetic and for memory, then by the number of its busy resources, from 0 on: how many times
    #: as long work takes.
    slowdowns: np.ndarray


def group_arrays(resources: Sequence[TokenBucket], groups: Sequence[ResourceGroup]) -> Tuple[np.ndarray, np.ndarray]:
    """Return the arrays `group` and `slowdowns` of :class:`ResourceRates`.

    Raises InputError if a resource does not exist, is in two groups or has a burst; or shares are out of range or grow.
    """
    group_of = np.full(len(resources), -1, np.int32)
    slowdowns = np.ones((len(groups), 2, 1 + max((len(group.resources) for group in groups), default=0)))
    for number, (members, shares, memory_shares) in enumerate(groups):
        for name, kind, kind_shares in (('shares', 0, shares), ('memory_shares', 1, memory_shares or shares)):
            if len(kind_shares) != len(members) or kind_shares[:1] != (1.0,) or not all(
                    0 < share <= before for share, before in zip(kind_shares, (1.0,) + tuple(kind_shares))):
                raise InputError('group %d: %s=%r: give one number for each of its %d resources: 1, then numbers above '
                                 '0 that do not grow' % (number, name, kind_shares, len(members)))
            slowdowns[number, kind, 1:1 + len(kind_shares)] = 1 / np.array(kind_shares)
        for resource in members:
            if not 0 <= resource < len(resources) or group_of[resource] >= 0 or resources[resource].burst > 0:
                raise InputError('group %d: resource %d: give a resource that exists, has no burst and is in no other '
                                 'group' % (number, resource))
            group_of[resource] = number
    return group_of, slowdowns
