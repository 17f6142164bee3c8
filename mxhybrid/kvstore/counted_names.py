"""Names of parameters without the numbers that gluon counts up in a process.

``dense3_`` is the fourth dense layer that a process has made outside of a name scope.  A worker that has made other
layers before has other numbers in the same network.
"""
import re
from collections import defaultdict
from typing import Dict, List, Sequence, Set, Tuple

_NUMBERED = re.compile(r'(.*?)(\d+)\Z', re.DOTALL)


def without_counters(names: Sequence[str]) -> List[str]:
    """Return the names with each number replaced by its rank among the numbers that follow the same text.

    For example, ``dense7_weight`` and ``dense3_weight`` become ``dense1_weight`` and ``dense0_weight``.
    """
    split = [name.split('_') for name in names]
    done: List[Tuple[str, ...]] = [()] * len(names)
    for level in range(max(map(len, split), default=0)):
        matches = [_NUMBERED.match(parts[level]) if level < len(parts) else None for parts in split]
        numbers: Dict[Tuple[Tuple[str, ...], str], Set[int]] = defaultdict(set)
        for before, match in zip(done, matches):
            if match is not None:
                numbers[before, match[1]].add(int(match[2]))
        ranks = {(text, number): rank for text, found in numbers.items() for rank, number in enumerate(sorted(found))}
        done = [before + tuple(parts[level:level + 1]) if match is None else
                before + ('%s%d' % (match[1], ranks[(before, match[1]), int(match[2])]),)
                for before, parts, match in zip(done, split, matches)]
    return ['_'.join(parts) for parts in done]
