"""The native store's keys of tables: which a table takes, and how those of tables that are gone serve later ones.

MXNet cannot delete a key of the native store.  What stays of a table, in the servers, are the numbers of its rows, 8
bytes for each, and 4 or 2 bytes per element more where the servers keep float32 beside another type.  A later table of
the same shape takes the keys over, without the push of all rows that brings new keys to life.
"""
import copy
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Dict, Iterable, List, NamedTuple, Tuple

from ..base.errors import InputError
from ..base.settings import variable
from .partitioning import Partitioning, Placement


class TableKind(NamedTuple):
    """What tables have in common that can take over each other's keys.

    With `halves` rows travel as float16, with `exact` servers keep the rows as they are besides.  Partitions of an
    `even` table lie on the servers in turn, those of others where the fewest bytes are.
    """

    rows: int
    width: int
    dtype: str
    halves: bool
    exact: bool
    even: bool


@dataclass(frozen=True)
class TableKeys:
    """The native keys of a table: those that `partitioning` has, and more where rows travel as float16.

    Gradients are then pushed to `push_keys`, and pairs of rows are pulled from `pair_keys`, which are the
    partitioning's own where the servers keep nothing but these.
    """

    kind: TableKind
    partitioning: Partitioning
    push_keys: Tuple[int, ...]
    pair_keys: Tuple[int, ...]
    #: Bytes of an element on the servers, in all keys together.
    itemsize: int
    #: Whether the servers have filled them before.
    used: bool = False


class KeyPool:
    """All keys of the servers; :class:`mxhybrid.servers.partitioning.Placement` says where new ones lie."""

    def __init__(self, num_servers: int, first_key: int):
        self.placement = Placement(num_servers, first_key)
        self._spare: Dict[Tuple[TableKind, int], List[TableKeys]] = defaultdict(list)

    def take(self, name: str, kind: TableKind, count: int, itemsize: int) -> TableKeys:
        """Keys for the table `name` of `count` partitions, used ones if any; InputError where too few are left."""
        spare = self._spare.get((kind, count))
        if spare:
            keys = spare.pop()
            self.placement.claim(keys.partitioning, itemsize)
            return keys
        placement = copy.deepcopy(self.placement)
        try:
            place = placement.spread if kind.even else placement.place
            partitioning = place(kind.rows, kind.width, itemsize, count)
            push_keys, pair_keys = (tuple(map(placement.key_on, partitioning.servers if wanted else ()))
                                    for wanted in (kind.halves, kind.halves and kind.exact))
        except OverflowError as error:
            raise InputError('%s: %d partitions need more keys than the servers have left, %d each: give a smaller '
                             'count, see %s' % (name, count, self.placement.keys_left(), variable('partitions'))
                             ) from error
        self.placement = placement
        return TableKeys(kind, partitioning, push_keys, pair_keys or (partitioning.keys if kind.halves else ()),
                         itemsize)

    def give_back(self, keys: TableKeys, partitioning: Partitioning, former: Iterable[Partitioning]) -> None:
        """Keep the keys, without contents, of a table that had `partitioning` last, and `former` ones before."""
        self.placement.release(partitioning, keys.itemsize)
        for each in [partitioning] + [one for one in former if one.count != partitioning.count]:
            self._spare[keys.kind, each.count].append(replace(keys, partitioning=each, used=True))
