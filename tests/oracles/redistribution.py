"""The transfers of a redistribution, in Python: ``src/transfers.cc`` finds the same transfers faster."""
import numpy as np

from mxhybrid.planner.task_graph.redistribution import Transfers, box_array


def find_transfers(held, partial, needed):
    """Return the transfers that give each rank the box that it needs.

    Where ranks hold `partial` sums, a target gets one from each of them.  Where several ranks hold the same
    box, it comes from the rank that sends the fewest boxes.
    """
    sources, targets = held.ranks, needed.ranks
    if not len(sources) or not len(targets):
        return Transfers(*(np.zeros(0, int),) * 3)
    if partial:
        return _without_local(np.repeat(sources, len(targets)), np.tile(targets, len(sources)),
                              _overlaps(held.boxes, needed.boxes).reshape(-1))
    holders = {}
    for rank, box in held.by_rank.items():
        holders.setdefault(box, []).append(rank)
    groups = list(holders.values())
    overlaps = _overlaps(box_array(list(holders)), needed.boxes)
    group_numbers, target_numbers = np.nonzero(overlaps)
    if len(groups) == len(sources):
        firsts = np.array([group[0] for group in groups])
        return _without_local(firsts[group_numbers], targets[target_numbers], overlaps[group_numbers, target_numbers])
    rows = []
    requests = dict.fromkeys(held.by_rank, 0)
    # As `messages` does: each target in turn asks the holder that has the fewest requests.
    for target_number, group_number in sorted(zip(target_numbers.tolist(), group_numbers.tolist())):
        target = int(targets[target_number])
        group = groups[group_number]
        if target in group:
            continue
        source = min(group, key=lambda rank: (requests[rank], rank))
        requests[source] += 1
        rows.append((source, target, int(overlaps[group_number, target_number])))
    columns = np.array(rows, int).reshape(-1, 3)
    return Transfers(columns[:, 0], columns[:, 1], columns[:, 2])


def find_coverage(held, needed):
    """Return 2 if each rank holds exactly the box that it needs, 1 if each holds it or a larger one, else 0."""
    boxes = held.by_rank
    if any(rank not in boxes for rank in needed.by_rank):
        return 0
    if all(boxes[rank] == box for rank, box in needed.by_rank.items()):
        return 2
    return int(all(low >= start and high <= end for rank, box in needed.by_rank.items()
                   for (low, high), (start, end) in zip(box, boxes[rank])))


def reversed_transfers(transfers, gradient_ranks):
    """Return the transfers of gradients: back from those of the targets that give one."""
    gives = np.isin(transfers.targets, np.asarray(gradient_ranks, int))
    return Transfers(transfers.targets[gives], transfers.sources[gives], transfers.elements[gives])


def _overlaps(boxes, others):
    """Return the numbers of elements that boxes have in common with others: one row for each of the first."""
    elements = np.ones((len(boxes), len(others)), int)
    for axis in range(boxes.shape[1]):
        elements *= np.maximum(np.minimum(boxes[:, None, axis, 1], others[None, :, axis, 1])
                               - np.maximum(boxes[:, None, axis, 0], others[None, :, axis, 0]), 0)
    return elements


def _without_local(sources, targets, elements):
    keep = (sources != targets) & (elements > 0)
    return Transfers(sources[keep], targets[keep], elements[keep])
