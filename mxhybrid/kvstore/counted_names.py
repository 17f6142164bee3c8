"""Names of parameters without the numbers that gluon counts up in a process.

``dense3_`` is the fourth dense layer that a process has made outside of a name scope.  A worker that has made other
layers before has other numbers in the same network.
"""
import re
from typing import Dict, List, Sequence, Set, Tuple

_NUMBERED = re.compile(r'(.*?)(\d+)\Z', re.DOTALL)


def without_counters(names: Sequence[str]) -> List[str]:
    """Return the names with each number replaced by its rank among the numbers that follow the same text.

    For example, ``dense7_weight`` and ``dense3_weight`` become ``dense1_weight`` and ``dense0_weight``.
    """
    split = [name.split('_') for name in names]
    done: List[Tuple[str, ...]] = [()] * len(names)
    for level in range(max(map(len, split), default=0)):
        numbers: Dict[Tuple[Tuple[str, ...], str], Set[int]] = {}
        for before, parts in zip(done, split):
            match = _NUMBERED.match(parts[level]) if level < len(parts) else None
            if match is not None:
                numbers.setdefault((before, match.group(1)), set()).add(int(match.group(2)))
        done = [before + _part(parts, level, numbers, before) for before, parts in zip(done, split)]
    return ['_'.join(parts) for parts in done]


def _part(parts: List[str], level: int, numbers: Dict[Tuple[Tuple[str, ...], str], Set[int]], before: Tuple[str, ...]
          ) -> Tuple[str, ...]:
    if level >= len(parts):
        return ()
    match = _NUMBERED.match(parts[level])
    if match is None:
        return (parts[level],)
    order = sorted(numbers[before, match.group(1)])
    return ('%s%d' % (match.group(1), order.index(int(match.group(2)))),)
