"""The keys of tables in the native store: new keys, and keys of dropped tables that later tables take over.

MXNet cannot delete a key of the native store.  The servers keep of a dropped table the ids of its rows, 8 bytes for
each, and 4 or 2 bytes more per element where they keep float32 in addition to another type.  A later table of the same
shape takes the keys over, without the push of all rows that creates new keys.
"""
import copy
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Dict, Iterable, List, NamedTuple, Tuple

from ..base.errors import InputError
from ..base.settings import variable
from .partitioning import Partitioning, Placement


class TableKind(NamedTuple):
    """The kind of a table: tables of one kind can take over each other's keys.

    With `halves` rows travel as float16; with `exact` servers also keep the rows unrounded.  Partitions of an `even`
    table are placed on the servers in turn, those of other tables on the servers with the fewest bytes.
    """

    rows: int
    width: int
    dtype: str
    halves: bool
    exact: bool
    even: bool


@dataclass(frozen=True)
class TableKeys:
    """The native keys of a table: those of `partitioning`, and more if rows travel as float16.

    Then gradients are pushed to `push_keys`, and rows are pulled as pairs from `pair_keys`, which are the keys of the
    partitioning if the servers keep nothing else.
    """

    kind: TableKind
    partitioning: Partitioning
    push_keys: Tuple[int, ...]
    pair_keys: Tuple[int, ...]
    #: Bytes of an element on the servers, over all keys.
    itemsize: int
    #: Whether the keys exist on the servers already.
    used: bool = False


class KeyPool:
    """All keys of the servers; :class:`mxhybrid.servers.partitioning.Placement` places new ones."""

    def __init__(self, num_servers: int, first_key: int):
        self.placement = Placement(num_servers, first_key)
        self._spare: Dict[Tuple[TableKind, int], List[TableKeys]] = defaultdict(list)

    def take(self, name: str, kind: TableKind, count: int, itemsize: int) -> TableKeys:
        """Take keys for the table `name` with `count` partitions, used ones if any; InputError if too few are left."""
        spare = self._spare.get((kind, count))
        if spare:
            keys = spare.pop()
            self.placement.claim(keys.partitioning, itemsize)
            return keys
        placement = copy.deepcopy(self.placement)
        try:
            place_partitions = placement.spread if kind.even else placement.place
            partitioning = place_partitions(kind.rows, kind.width, itemsize, count)
            push_keys, pair_keys = (tuple(map(placement.key_on, partitioning.servers if is_needed else ()))
                                    for is_needed in (kind.halves, kind.halves and kind.exact))
        except OverflowError as error:
            raise InputError('%s: %d partitions need more keys than the servers have left, %d each: give a smaller '
                             'count, see %s' % (name, count, self.placement.keys_left(), variable('partitions'))
                             ) from error
        self.placement = placement
        return TableKeys(kind, partitioning, push_keys, pair_keys or (partitioning.keys if kind.halves else ()),
                         itemsize)

    def give_back(self, keys: TableKeys, partitioning: Partitioning, former: Iterable[Partitioning]) -> None:
        """Keep the keys, without contents, of a table that had `partitioning` last, and the `former` ones before."""
        self.placement.release(partitioning, keys.itemsize)
        for cut in [partitioning] + [cut for cut in former if cut.count != partitioning.count]:
            self._spare[keys.kind, cut.count].append(replace(keys, partitioning=cut, used=True))
