"""Repeated blocks: operators at the same place of blocks that follow each other, such as the layers of a Transformer.
"""
from typing import Hashable, Iterator, List, NamedTuple, Sequence, Tuple


class _Repeat(NamedTuple):
    """Some blocks of `period` operators, which begin at `first` and follow each other."""

    first: int
    period: int
    blocks: int

    @property
    def end(self) -> int:
        """The position after the last block."""
        return self.first + self.period * self.blocks


def repeated_groups(keys: Sequence[Hashable]) -> List[List[int]]:
    """Return the groups of positions that are at the same place of repeated blocks; all others are groups of one.

    - `keys`: a key of each operator, in order; operators with equal keys are the same.

    Returns
    -------
    list of list of int
        Every position is in one group; groups are in the order of their first position.
    """
    # The repeat that covers most operators comes first: layers, before the equal projections inside a layer.
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    sequence = [numbers[key] for key in keys]
    groups: List[List[int]] = []
    pending: List[Tuple[int, int]] = [(0, len(keys))]
    while pending:
        low, high = pending.pop()
        repeat = max(_repeats(sequence, low, high), default=None,
                     key=lambda found: (found.end - found.first, -found.period, -found.first))
        if repeat is None:
            groups += [[position] for position in range(low, high)]
            continue
        groups += [list(range(repeat.first + place, repeat.end, repeat.period)) for place in range(repeat.period)]
        pending += [(low, repeat.first), (repeat.end, high)]
    return sorted(groups)


def _repeats(sequence: Sequence[int], low: int, high: int) -> Iterator[_Repeat]:
    """Yield the longest repeats of each period within a range of positions."""
    for period in range(1, (high - low) // 2 + 1):
        matching = 0  # the number of positions before this one that are the same a period later
        for position in range(low, high - period + 1):
            if position < high - period and sequence[position] == sequence[position + period]:
                matching += 1
                continue
            if matching >= period:
                yield _Repeat(position - matching, period, matching // period + 1)
            matching = 0
