"""The critical path of a simulated step in words: what the step waits for, and what would make that less."""
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ...base.text import seconds_text
from ..task_graph.simulated_tasks import TASK_GROUPS, TASK_KINDS, SimulatedTask

#: By group: what the step does, and what to do about it.
_SENTENCES = {
    'compute': ('computes %s', ''),
    'exchange': ('waits for exchanges of what %s gives', 'give what reads it its layout'),
    'within': ('waits for exchanges within %s', 'split it over fewer ranks'),
    'sum': ('waits for the sums of %s', ''),
    'row_sum': ('waits for the sums of all rows of %s', 'give it another route'),
    'push': ('waits until rows of %s are pushed', 'give it more partitions, or another route'),
    'pull': ('waits for rows of %s', 'give it more partitions, or another route'),
    'merge': ('waits until servers have updated %s', 'give it more partitions'),
    'update': ('updates %s', ''),
    'step': ('is what the store takes by itself', ''),
}

#: Of the step: what is less has no sentence of its own, unless it is the most.
_SMALL_PART = 0.1
_MOST_SENTENCES = 3


def bottleneck_summary(path: Sequence[SimulatedTask], step_s: float, parts: Optional[Mapping[str, int]] = None,
                       ranks: int = 0, layers: Optional[Mapping[str, str]] = None) -> List[str]:
    """What a step waits for, the most first.

    Each moment of the step counts for the task of the path that began last, so that what a message takes until it
    arrives counts for the message.

    Parameters
    ----------
    path : sequence of SimulatedTask
        The critical path from the first to the last task.
    step_s : float
        Of the whole step.
    parts : dict of str to int, optional
        Ranks that compute an operator, by its label; what is on fewer than all is worth splitting.
    ranks : int, optional
        In all.
    layers : dict of str to str, optional
        By label of weights: the layer to split, where that makes their sums and updates less.

    Returns
    -------
    list of str
        A line with the share of each group, then a sentence each for what takes most, as ``'62 % of the step waits for
        the sums of fc6_weight: split fc6'``.
    """
    shares = critical_path_shares(path, step_s)
    if not shares:
        return ['the step is empty']
    groups: Dict[str, float] = {}
    for (group, _), share in shares.items():
        groups[group] = groups.get(group, 0.0) + share
    lines = ['%s a step: %s' % (seconds_text(step_s), ', '.join(
        '%.0f %% %s' % (100 * share, TASK_GROUPS[group])
        for group, share in sorted(groups.items(), key=lambda item: -item[1]) if share >= 0.005))]
    largest = sorted(shares.items(), key=lambda item: -item[1])
    told = [item for at, item in enumerate(largest) if not at or item[1] >= _SMALL_PART][:_MOST_SENTENCES]
    return lines + [_sentence(group, label, share, parts or {}, ranks, layers or {}) for (group, label), share in told]


def critical_path_shares(path: Sequence[SimulatedTask], step_s: float) -> Dict[Tuple[str, str], float]:
    """The part of the step that each group and label has on the critical path; together 1, from the path's begin."""
    found: Dict[Tuple[str, str], float] = {}
    if step_s <= 0:
        return found
    ends = [task.start_s for task in path[1:]] + [step_s]
    reached = path[0].start_s if path else step_s
    for task, end in zip(path, ends):
        group = TASK_KINDS[task.kind].group
        key = group, '' if group == 'step' else task.label
        found[key] = found.get(key, 0.0) + max(0.0, end - reached) / step_s
        reached = max(reached, end)
    return {key: round(share, 9) for key, share in found.items()}  # what is equal shall stay in order


def _sentence(group: str, label: str, share: float, parts: Mapping[str, int], ranks: int, layers: Mapping[str, str]
              ) -> str:
    what, remedy = _SENTENCES[group]
    if group == 'compute' and label in parts and parts[label] < ranks:
        remedy = 'it is on %d of %d ranks, split it further' % (parts[label], ranks)
    elif group in ('sum', 'update') and label in layers:
        remedy = 'split %s' % layers[label]
    return '%.0f %% of the step %s%s' % (100 * share, what % label if '%' in what else what,
                                         ': ' + remedy if remedy else '')
