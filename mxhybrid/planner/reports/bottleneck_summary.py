"""The critical path of a simulated step in sentences: the bottlenecks, and remedies for them."""
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ...base.text import seconds_text
from ..task_graph.simulated_tasks import TABLES_LABEL, TASK_GROUPS, TASK_KINDS, SimulatedTask

#: By group: the activity, and a remedy.
_SENTENCES = {
    'compute': ('is spent computing %s', ''),
    'redistribution': ('is spent redistributing the output of %s', 'give the operators that read it the same layout'),
    'within': ('is spent on redistributions inside %s', 'split it over fewer ranks'),
    'sum': ('is spent summing gradients of %s', ''),
    'gather': ('is spent gathering updated weights of %s', ''),
    'row_sum': ('is spent summing all rows of %s', 'give it another route'),
    'push': ('is spent pushing rows of %s', 'give it more partitions, or another route'),
    'pull': ('is spent pulling rows of %s', 'give it more partitions, or another route'),
    'accumulate': ('is spent adding gradients of micro-batches of %s', 'take fewer micro-batches'),
    'update': ('is spent updating %s', ''),
    'step': ('is overhead of the store', ''),
}

#: A bottleneck with a smaller share of the step has no sentence, unless it is the largest one.
_SMALL_SHARE = 0.1
_MOST_SENTENCES = 3


def bottleneck_summary(path: Sequence[SimulatedTask], step_s: float, parts: Optional[Mapping[str, int]] = None,
                       ranks: int = 0, layers: Optional[Mapping[str, str]] = None) -> List[str]:
    """Return the bottlenecks of a step: a line with the share of each group, then a sentence for each of the largest
    bottlenecks, for example ``'62 % of the step is spent summing gradients of fc6_weight: split fc6'``.

    Each moment of the step counts for the task of the path that began last, so that the latency of a message counts for
    the message.

    - `path`: the critical path from the first to the last task.
    - `step_s`: the time of the whole step.
    - `parts`: by label of an operator: the number of ranks that compute it.  An operator on fewer than all ranks is
      worth splitting.
    - `ranks`: the number of all ranks.
    - `layers`: by label of weights: the layer to split, if that reduces their sums and updates.
    """
    shares = critical_path_shares(path, step_s)
    if not shares:
        return ['the step has no tasks']
    groups: Dict[str, float] = {}
    for (group, _), share in shares.items():
        groups[group] = groups.get(group, 0.0) + share
    lines = ['%s a step: %s' % (seconds_text(step_s), ', '.join(
        '%.0f %% %s' % (100 * share, TASK_GROUPS[group])
        for group, share in sorted(groups.items(), key=lambda item: -item[1]) if share >= 0.005))]
    largest = sorted(shares.items(), key=lambda item: -item[1])
    bottlenecks = [item for number, item in enumerate(largest) if number == 0 or item[1] >= _SMALL_SHARE]
    return lines + [_sentence(group, label, share, parts or {}, ranks, layers or {})
                    for (group, label), share in bottlenecks[:_MOST_SENTENCES]]


def critical_path_shares(path: Sequence[SimulatedTask], step_s: float) -> Dict[Tuple[str, str], float]:
    """Return the share of the step, from the path's begin, that each group and label has on the critical path.

    The sum of all shares is 1.
    """
    shares: Dict[Tuple[str, str], float] = {}
    if step_s <= 0:
        return shares
    ends = [task.start_s for task in path[1:]] + [step_s]
    reached = path[0].start_s if path else step_s
    for task, end in zip(path, ends):
        group = TASK_KINDS[task.kind].group
        key = group, '' if group == 'step' else task.label
        shares[key] = shares.get(key, 0.0) + max(0.0, end - reached) / step_s
        reached = max(reached, end)
    return {key: round(share, 9) for key, share in shares.items()}  # equal shares stay in order


def _sentence(group: str, label: str, share: float, parts: Mapping[str, int], ranks: int, layers: Mapping[str, str]
              ) -> str:
    activity, remedy = _SENTENCES[group]
    if group == 'compute' and label in parts and parts[label] < ranks:
        remedy = 'it runs on %d of %d ranks, split it further' % (parts[label], ranks)
    elif group in ('sum', 'update') and label in layers:
        remedy = 'split %s' % layers[label]
    elif label == TABLES_LABEL:
        remedy = 'request the rows of the next batch early, with mxhybrid.prefetching'
    return '%.0f %% of the step %s%s' % (100 * share, activity % label if '%' in activity else activity,
                                         ': ' + remedy if remedy else '')
