"""What an exchange moves between ranks: the bytes of :func:`mxhybrid.parallel.layout.messages`, for many ranks at once.
"""
from typing import Dict, List, Sequence, Tuple

import numpy as np

from ..parallel.boxes import Box
from ..parallel.layout import Layout


class Moved:
    """Elements that go from rank to rank, in arrays of equal length.

    Attributes
    ----------
    sources, targets : numpy.ndarray of int
        Ranks; never the same.
    elements : numpy.ndarray of int
    """

    def __init__(self, sources: np.ndarray, targets: np.ndarray, elements: np.ndarray):
        self.sources, self.targets, self.elements = sources, targets, elements

    def reversed(self, targets: Sequence[int]) -> 'Moved':
        """What goes back as gradients, from those of the targets that answer."""
        answers = np.isin(self.targets, np.asarray(targets, int))
        return Moved(self.targets[answers], self.sources[answers], self.elements[answers])

    def __len__(self) -> int:
        return len(self.sources)


def moved(have: Layout, wanted: Dict[int, Box]) -> Moved:
    """What has to move so that every rank has what is `wanted` there.

    Addends come from all who have one; of several ranks that hold the same box each target asks one, in turn.
    """
    if not wanted or not have.boxes:
        return Moved(*(np.zeros(0, int),) * 3)
    targets = np.array(sorted(wanted))
    low, high = _ends([wanted[rank] for rank in targets])
    if have.partial:
        sources = np.array(sorted(have.boxes))
        volumes = _volumes(*_ends([have.boxes[rank] for rank in sources]), low, high)
        return _without_own(np.repeat(sources, len(targets)), np.tile(targets, len(sources)), volumes.reshape(-1))
    holders: Dict[Box, List[int]] = {}
    for rank, box in sorted(have.boxes.items()):
        holders.setdefault(box, []).append(rank)
    volumes = _volumes(*_ends(list(holders)), low, high)
    found: List[Tuple[int, int, int]] = []
    asked: Dict[int, int] = dict.fromkeys(have.boxes, 0)
    groups = list(holders.values())
    at_group, at_target = np.nonzero(volumes)
    single = np.array([len(group) == 1 for group in groups])
    if single.all():
        firsts = np.array([group[0] for group in groups])
        return _without_own(firsts[at_group], targets[at_target], volumes[at_group, at_target])
    # As `messages` does it: target by target, from the one that few others ask.
    for target_at, group_at in sorted(zip(at_target.tolist(), at_group.tolist())):
        target = int(targets[target_at])
        group = groups[group_at]
        if target in group:
            continue
        source = min(group, key=lambda rank: (asked[rank], rank))
        asked[source] += 1
        found.append((source, target, int(volumes[group_at, target_at])))
    both = np.array(found, int).reshape(-1, 3)
    return Moved(both[:, 0], both[:, 1], both[:, 2])


def _ends(boxes: Sequence[Box]) -> Tuple[np.ndarray, np.ndarray]:
    both = np.array(boxes, int).reshape(len(boxes), -1, 2)
    return both[:, :, 0], both[:, :, 1]


def _volumes(low: np.ndarray, high: np.ndarray, other_low: np.ndarray, other_high: np.ndarray) -> np.ndarray:
    """Elements that boxes have in common, one row a box of the first."""
    if not low.shape[1]:
        return np.ones((len(low), len(other_low)), int)
    found = np.ones((len(low), len(other_low)), int)
    for at in range(low.shape[1]):  # dimension by dimension, so that memory stays that of the result
        found *= np.maximum(np.minimum(high[:, None, at], other_high[None, :, at])
                            - np.maximum(low[:, None, at], other_low[None, :, at]), 0)
    return found


def _without_own(sources: np.ndarray, targets: np.ndarray, elements: np.ndarray) -> Moved:
    keep = (sources != targets) & (elements > 0)
    return Moved(sources[keep], targets[keep], elements[keep])
