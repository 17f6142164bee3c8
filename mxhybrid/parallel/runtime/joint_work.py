"""Operators that are computed for the joint batch, by every worker or by one, and outputs that all workers have whole:
where that is, why, and what it costs.
"""
from typing import Dict, List, Mapping

from ...base.text import size_text
from ..ops.dimension_names import Dimensions
from ..ops.graph import Graph, Operator
from ..ops.registry import has_rule
from ..sharding.box import full, size_of
from ..sharding.split import Split

#: Operators that a warning names.
_SHOWN = 5


def joint_operators(graph: Graph, dimensions: Dimensions, splits: Mapping[int, Split], ranks: int) -> Dict[int, str]:
    """Return why and where operators of data with samples are not split at all, and what that costs, by their numbers.
    """
    found = {}
    for operator in graph.computing if ranks > 1 else ():
        split = splits[operator.number]
        if len(split.ranks) == split.copies and _has_samples(dimensions, operator):
            found[operator.number] = '%s: %s' % (_where(graph, operator, split, ranks), _why(dimensions, operator))
    return found


def whole_outputs(graph: Graph, dimensions: Dimensions) -> List[str]:
    """Return what there is to say of the network's outputs: those that all workers have whole, and those of which a
    worker has several ranges of samples.
    """
    found = []
    for at, entry in enumerate(graph.heads):
        name = 'output %d (%s)' % (at, graph.label(graph.operators[entry[0]]))
        axis, loser = dimensions.sample_axis(entry), dimensions.loser(entry)
        if loser is not None:
            found.append('%s: whole on every worker: its samples are not known behind %s'
                         % (name, _behind(dimensions, loser)))
        elif axis is not None and axis.rounds > 1:
            found.append('%s: all samples %d times behind each other; each worker gets its own ones of every time'
                         % (name, axis.rounds))
    return found


def joint_warning(graph: Graph, notes: Mapping[int, str], ranks: int) -> str:
    """Return a sentence about operators without a rule among those that are computed for the joint batch; '' if there
    are none.
    """
    names = ['%s (%s)' % (graph.label(operator), operator.op)
             for operator in (graph.operators[number] for number in sorted(notes))
             if not has_rule(operator)]
    if not names:
        return ''
    more = ' and %d others' % (len(names) - _SHOWN) if len(names) > _SHOWN else ''
    return ('parallelize: operators without a rule are computed for the joint batch of %d workers, and so is what '
            'follows them until samples are known again: %s%s; print(net) says where, and what that costs' % (
                ranks, ', '.join(names[:_SHOWN]), more))


def _has_samples(dimensions: Dimensions, operator: Operator) -> bool:
    """Tell whether an operator computes of samples, wherever they are."""
    entry = operator.number, 0
    return dimensions.sample_axis(entry) is not None or dimensions.loser(entry) is not None


def _why(dimensions: Dimensions, operator: Operator) -> str:
    if not has_rule(operator):
        return 'there is no rule for %s' % operator.op
    loser = dimensions.loser((operator.number, 0))
    if loser is None:
        return 'its samples cannot be cut'
    return 'it mixes samples' if loser is operator else 'its samples are not known behind ' + _behind(dimensions, loser)


def _behind(dimensions: Dimensions, loser: Operator) -> str:
    return '%s, %s' % (dimensions.graph.label(loser), 'which mixes them' if has_rule(loser) else
                       'as there is no rule for %s' % loser.op)


def _where(graph: Graph, operator: Operator, split: Split, ranks: int) -> str:
    reads = sum(size_of(full(graph.shapes[entry])) * graph.dtypes[entry].itemsize for entry in operator.inputs
                if entry[0] not in graph.fixed)
    if len(split.ranks) == 1:
        drawn = ', which draws for all' * operator.draws
        return 'of the joint batch on worker %d alone%s, from inputs of %s, while others may wait' % (
            split.ranks[0], drawn, size_text(reads))
    return 'whole on %s, %d times the work of a share each, from inputs of %s' % (
        'every worker' if len(split.ranks) == ranks else 'workers ' + ', '.join(map(str, split.ranks)), ranks,
        size_text(reads))
