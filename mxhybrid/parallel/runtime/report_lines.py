"""The lines of reports: an operator each, or the operators of a norm that a network computes by itself."""
import math
from typing import Dict, List, Mapping, NamedTuple, Sequence

from ..ops.dimension_names import Dimensions
from ..ops.graph import Entry, Graph, Operator
from ..ops.registry import rule_of
from ..sharding.split import Split


class ReportLine(NamedTuple):
    """A line of a report, with its operators in their order."""

    label: str
    kind: str
    operators: Sequence[Operator]


def report_lines(graph: Graph, dimensions: Dimensions, splits: Mapping[int, Split]) -> List[ReportLine]:
    """Return the lines of all operators; those of a norm are one line if they are split alike."""
    norms: Dict[int, List[Operator]] = {}
    for norm in written_norms(graph):
        operators = [graph.operators[number] for number in norm]
        whole = math.prod(graph.shape(operators[-1]))
        if len({splits[number].ranks for number in norm}) == 1 and len({
                (splits[operator.number].key, dimensions.names(operator)) for operator in operators
                if math.prod(graph.shape(operator)) == whole}) == 1:
            norms.update(dict.fromkeys(norm, operators))
    lines = []
    for operator in graph.computing:
        operators = norms.get(operator.number, [operator])
        if operator is operators[-1]:
            label = graph.label(operator)
            lines.append(ReportLine(label, operator.op, operators) if len(operators) == 1 else ReportLine(
                '%s to %s' % (graph.label(operators[0]), label), 'norm of %d operators' % len(operators), operators))
    return lines


def written_norms(graph: Graph) -> List[List[int]]:
    """Return the numbers of the operators of each norm that a network computes by reductions and elementwise
    operators: those of statistics of an array, and those that combine the array with them and with weights.
    """
    members: List[List[int]] = []
    sources: List[Entry] = []
    norm_of: Dict[int, int] = {}
    readers: Dict[int, List[int]] = {}
    data = {operator.number: {entry for entry in operator.inputs if entry[0] not in graph.fixed}
            for operator in graph.computing}
    for number, read in data.items():
        for source, _ in read:
            readers.setdefault(source, []).append(number)
    for operator in graph.computing:
        rule, number, read = rule_of(operator), operator.number, data[operator.number]
        norms = {norm_of[source] for source, _ in read if source in norm_of}
        if not norms and rule.reduces:
            entry, = read
            squaring = graph.operators[entry[0]]
            is_square = rule_of(squaring).is_elementwise and len(set(squaring.inputs)) == 1
            if is_square and readers[squaring.number] == [number]:
                added, entry = [squaring.number, number], squaring.inputs[0]
            else:
                added = [number]
            if entry not in sources:
                sources.append(entry)
                members.append([])
            norm = sources.index(entry)
        elif len(norms) == 1:
            added, norm = [number], norms.pop()
            belongs = rule.is_elementwise or rule.reduces or bool(rule.reshaped(graph, operator))
            if not belongs or any(entry != sources[norm] and norm_of.get(entry[0]) != norm for entry in read):
                continue
        else:
            continue
        members[norm] += added
        norm_of.update(dict.fromkeys(added, norm))
    kept = (_without_ends(graph, sorted(norm), readers) for norm in members)
    return [norm for norm in kept if norm]


def _without_ends(graph: Graph, norm: List[int], readers: Mapping[int, Sequence[int]]) -> List[int]:
    """Return the operators of a norm without later ones; none if they do not combine statistics with an array."""
    whole = max(math.prod(shape) for shape in graph.inputs(graph.operators[norm[0]]))

    def is_whole(number: int) -> bool:
        return math.prod(graph.shapes[number, 0]) == whole

    def combines(number: int) -> bool:
        return is_whole(number) and any(source in norm and not is_whole(source)
                                        for source, _ in graph.operators[number].inputs)
    while norm and not combines(norm[-1]) and not (is_whole(norm[-1]) and any(
            source in graph.fixed for source, _ in graph.operators[norm[-1]].inputs)):
        norm.pop()
    is_one = norm and all(reader in norm for number in norm[:-1] for reader in readers.get(number, ()))
    return norm if is_one and any(map(combines, norm)) else []


def line_notes(lines: Sequence[ReportLine], joint: Mapping[int, str]) -> Dict[int, str]:
    """Return notes on operators by number, one for the operators of a line: that of the last of them."""
    others = {operator.number for line in lines for operator in line.operators[:-1]}
    return {number: note for number, note in joint.items() if number not in others}
